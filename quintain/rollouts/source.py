"""The acting half, wherever it runs: the interface of a source, and of the collectors that act for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from quintain.data.rollout import Rollout
from quintain.envs.base import Env
from quintain.envs.eventful import events_of
from quintain.envs.parameters import Parameters
from quintain.policies.base import Policy
from quintain.rollouts.store import RolloutStore
from quintain.rollouts.sync_collector import EpisodeListener, StepListener
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.typing import Array, LaneIds, Metrics, State, TrainingEnv


BehaviorListener = Callable[[str, "Array", "Array"], None]
"""Callback with a behaviour, and the returns and lengths of its completed episodes."""


class RolloutSource(Protocol):
    """Fills the stores of all behaviours with experience and receives new versions of their policies.

    Calls that concern the environment (`set_env_parameters`, `end_episode`, `trigger`) take effect after the blocks
    that were ordered before and before those that are ordered after, regardless of which side is faster.
    """

    def next_full(
        self,
        stores: Mapping[str, RolloutStore],
        learning: Collection[str],
        should_stop: Callable[[], bool],
        wanted: str | None = None,
    ) -> str | None:
        """Acts until a block, or that of `wanted`, is full; returns its behaviour, or None if asked to stop first.

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
    def complete(self, stores: Mapping[str, RolloutStore]) -> None: ...
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
        """Steps until a block is full; returns the behaviours with full blocks, or none if asked to stop first."""

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
    """Adapts a collector of lanes to a collector of one behaviour."""

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


def both(first: StepListener, second: StepListener) -> StepListener:
    """Returns a callback that calls both."""

    def listen(step: Any, info: dict[str, Any]) -> None:
        first(step, info)
        second(step, info)

    return listen


def fire_env_events(env: Env, name: str, lanes: LaneIds | None) -> None:
    """Fires the events of an environment with this name."""
    events = events_of(env)
    if events is not None and name in events.available_modes:
        events.apply(name, lanes)


def idle_env_events(env: Env) -> list[str]:
    """Returns the names of an environment's events that were never called."""
    events = events_of(env)
    return [] if events is None else events.never_fired()
