"""The acting half, wherever it runs. `LocalSource` acts in the learner's own thread, with the learner's own policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from quintain.core.state import require_count
from quintain.data.rollout import Rollout
from quintain.envs.base import Env
from quintain.envs.eventful import events_of
from quintain.envs.parameters import Parameters
from quintain.policies.base import Policy
from quintain.rollouts.store import RolloutStore
from quintain.rollouts.sync_collector import EpisodeListener, StepListener
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings
    from quintain.typing import Array, LaneIds, Metrics, State, TrainingEnv


BehaviorListener = Callable[[str, "Array", "Array"], None]
"""Receives the behaviour, and the returns and lengths of its episodes that ended."""


class RolloutSource(Protocol):
    """Fills the stores of all behaviours with experience and receives new versions of their policies.

    What is asked of the environment (`set_env_parameters`, `end_episode`, `trigger`) happens after the blocks that
    were ordered before and before those that are ordered after, so it does not depend on which side is quicker.
    """

    def next_full(
        self,
        stores: Mapping[str, RolloutStore],
        learning: Collection[str],
        should_stop: Callable[[], bool],
        wanted: str | None = None,
    ) -> str | None:
        """Acts until a block is full and returns its behaviour, or that of the wanted one; None if asked to stop first.

        `learning` are the behaviours that still learn.
        """

    def publish(self, behavior: str, version: int, policy: Policy) -> None: ...
    def set_env_parameters(self, values: Parameters) -> None: ...
    def restore_env_parameters(self, values: Parameters) -> None: ...
    def require_env_parameters(self, names: Sequence[str]) -> None: ...
    def end_episode(self) -> None: ...
    def trigger(self, name: str, lanes: LaneIds | None) -> None: ...
    def idle_env_events(self) -> list[str]: ...
    def listen(self, on_step: StepListener | None) -> None: ...
    def heard_by(self, on_step: StepListener) -> AbstractContextManager[None]: ...
    def wait(self) -> None: ...
    def pause(self, should_stop: Callable[[], bool]) -> None: ...
    def close(self) -> None: ...
    def drain_seconds(self) -> dict[str, float]: ...
    def drain_metrics(self, behavior: str) -> Metrics: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...
    def begin_anew(self, states: Sequence[State]) -> None: ...

    @property
    def env(self) -> TrainingEnv: ...
    @property
    def exactness(self) -> str: ...
    @property
    def supervisors(self) -> Sequence[Supervisor]: ...


NOTHING_AHEAD: State = {"commands": [], "reports": []}
"""What a source that does not run ahead of the learner saves of its plans."""

Orders = Mapping[str, tuple[Rollout, int]]
"""The block that each behaviour fills, and the version that it acts with."""


class Collector(Protocol):
    """Steps one environment with the policies of all its behaviours, and fills a block for each."""

    on_step: StepListener | None
    on_episodes: BehaviorListener

    @property
    def env(self) -> TrainingEnv: ...
    @property
    def policies(self) -> Mapping[str, Policy]: ...
    def fill(self, orders: Orders, should_stop: Callable[[], bool]) -> list[str]:
        """Steps until a block is full; returns the behaviours whose blocks are, none if asked to stop first."""

    def act_on(self, behavior: str, version: int) -> None:
        """Lets a behaviour act with this version from now on, without a block."""

    def start_episodes(self) -> None: ...
    def begin_anew(self, states: Sequence[State]) -> None: ...
    def drain_seconds(self) -> dict[str, float]: ...
    def drain_metrics(self, behavior: str) -> Metrics: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class LaneCollector(Protocol):
    """Fills blocks of one environment's lanes with one policy."""

    policy: Policy
    on_step: StepListener | None
    on_episodes: EpisodeListener

    @property
    def env(self) -> Env: ...
    def collect(self, rollout: Rollout, version: int, should_stop: Callable[[], bool]) -> bool: ...
    def start_episodes(self) -> None: ...
    def begin_anew(self, states: Sequence[State]) -> None: ...
    def drain_seconds(self) -> dict[str, float]: ...
    def drain_metrics(self) -> Metrics: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class Lanes:
    """A collector of lanes as the collector of the one behaviour that lanes have."""

    def __init__(self, behavior: str, lanes: LaneCollector) -> None:
        self.behavior = behavior
        self.lanes = lanes
        self.policies: Mapping[str, Policy] = {behavior: lanes.policy}
        self.start_episodes = lanes.start_episodes
        self.begin_anew = lanes.begin_anew
        self.drain_seconds = lanes.drain_seconds
        self.state_dict = lanes.state_dict
        self.load_state_dict = lanes.load_state_dict

    def fill(self, orders: Orders, should_stop: Callable[[], bool]) -> list[str]:
        block, version = orders[self.behavior]
        return [self.behavior] if self.lanes.collect(block, version, should_stop) else []

    def act_on(self, behavior: str, version: int) -> None:
        raise AssertionError("a run of lanes ends when its one behaviour has learned")

    def drain_metrics(self, behavior: str) -> Metrics:
        return self.lanes.drain_metrics()

    @property
    def env(self) -> Env:
        return self.lanes.env

    @property
    def on_step(self) -> StepListener | None:
        return self.lanes.on_step

    @on_step.setter
    def on_step(self, listener: StepListener | None) -> None:
        self.lanes.on_step = listener

    @property
    def on_episodes(self) -> BehaviorListener:
        return lambda behavior, returns, lengths: self.lanes.on_episodes(returns, lengths)

    @on_episodes.setter
    def on_episodes(self, listener: BehaviorListener) -> None:
        self.lanes.on_episodes = partial(listener, self.behavior)


class LocalSource:
    """Collects lanes in place: publishing moves nothing, because the collector holds the module that is trained."""

    behavior = "default"
    """The name of the behaviour that lanes have; the placement sets it."""

    def __init__(self, settings: PartSettings, collector: LaneCollector) -> None:
        self.settings = settings
        self.collector = collector
        self.version = 0
        self.open_block: Rollout | None = None

    def next_full(
        self,
        stores: Mapping[str, RolloutStore],
        learning: Collection[str],
        should_stop: Callable[[], bool],
        wanted: str | None = None,
    ) -> str | None:
        return self.behavior if self.fill(stores[self.behavior], should_stop) else None

    def fill(self, store: RolloutStore, should_stop: Callable[[], bool]) -> bool:
        """Collects until the store is ready; returns False if asked to stop first."""
        while not store.ready():
            if self.open_block is None:
                self.open_block = store.reserve()
            if self.open_block is None or not self.collector.collect(self.open_block, self.version, should_stop):
                return False
            store.commit(self.open_block)
            self.open_block = None
        return True

    def publish(self, behavior: str, version: int, policy: Policy) -> None:
        self.version = version

    def set_env_parameters(self, values: Parameters) -> None:
        """Changes named numbers of the task in all training lanes."""
        self.collector.env.set_parameters(values)

    def restore_env_parameters(self, values: Parameters) -> None:
        """Does nothing: parameters of lanes are part of their state."""

    def require_env_parameters(self, names: Sequence[str]) -> None:
        """Refuses names that `set_env_parameters` would refuse, and changes nothing."""
        self.collector.env.require_parameters(names)

    def end_episode(self) -> None:
        """Cuts the episodes that are going on and begins new ones; only between rollouts."""
        self.collector.start_episodes()

    def trigger(self, name: str, lanes: LaneIds | None) -> None:
        """Fires the environment's events that wait for this name, in these lanes or in all."""
        fire_env_events(self.collector.env, name, lanes)

    def idle_env_events(self) -> list[str]:
        """Names the environment's events that were never called."""
        return idle_env_events(self.collector.env)

    def listen(self, on_step: StepListener | None) -> None:
        """Lets a function see every step from now on, or none."""
        self.collector.on_step = on_step

    @contextmanager
    def heard_by(self, on_step: StepListener) -> Iterator[None]:
        """Lets a function see the steps of this block only; who listened before hears them too."""
        before = self.collector.on_step
        self.collector.on_step = on_step if before is None else both(before, on_step)
        try:
            yield
        finally:
            self.collector.on_step = before

    def wait(self) -> None:
        """Returns at once: acting happens inside `fill`."""

    def pause(self, should_stop: Callable[[], bool]) -> None:
        """Returns at once: nothing happens outside `fill`."""

    def close(self) -> None:
        self.collector.env.close()

    def drain_seconds(self) -> dict[str, float]:
        """Returns and forgets the seconds spent acting and stepping."""
        return self.collector.drain_seconds()

    def drain_metrics(self, behavior: str) -> Metrics:
        return self.collector.drain_metrics()

    @property
    def env(self) -> Env:
        return self.collector.env

    @property
    def exactness(self) -> str:
        return self.collector.env.exactness

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        """Those whose children only this source has: none, environment workers are the run's."""
        return ()

    def state_dict(self) -> State:
        versions = {self.behavior: self.version}
        return {"collector": self.collector.state_dict(), "versions": versions, "ahead": NOTHING_AHEAD}

    def load_state_dict(self, state: State) -> None:
        self.version = require_count("version", state["versions"][self.behavior])
        self.open_block = None
        self.collector.load_state_dict(state["collector"])

    def begin_anew(self, states: Sequence[State]) -> None:
        """Continues after sources that had other lanes: the newest version, new episodes, noise not used before."""
        self.version = max(state["versions"][self.behavior] for state in states)
        self.collector.begin_anew([state["collector"] for state in states])


def both(first: StepListener, second: StepListener) -> StepListener:
    """Returns a listener that lets both hear of each step."""

    def listen(step: Any, info: dict[str, Any]) -> None:
        first(step, info)
        second(step, info)

    return listen


def fire_env_events(env: Env, name: str, lanes: LaneIds | None) -> None:
    """Calls the events of an environment that wait for this name."""
    events = events_of(env)
    if events is not None and name in events.available_modes:
        events.apply(name, lanes)


def idle_env_events(env: Env) -> list[str]:
    """Names the events of an environment that were never called."""
    events = events_of(env)
    return [] if events is None else events.never_fired()
