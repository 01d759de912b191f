"""The acting half, wherever it runs. `LocalSource` acts in the learner's own thread, with the learner's own policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from quintain.data.rollout import Rollout
from quintain.envs.base import Env
from quintain.envs.parameters import Parameters
from quintain.policies.base import Policy
from quintain.rollouts.store import RolloutStore
from quintain.rollouts.sync_collector import StepListener, SyncCollector

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings
    from quintain.typing import Metrics, State


class RolloutSource(Protocol):
    """Fills a store with experience and receives new versions of the policy."""

    def fill(self, store: RolloutStore, should_stop: Callable[[], bool]) -> bool: ...
    def publish(self, version: int, policy: Policy) -> None: ...
    def set_env_parameters(self, values: Parameters) -> None: ...
    def end_episode(self) -> None: ...
    def listen(self, on_step: StepListener | None) -> None: ...
    def heard_by(self, on_step: StepListener) -> AbstractContextManager[None]: ...
    def wait(self) -> None: ...
    def close(self) -> None: ...
    def drain_seconds(self) -> dict[str, float]: ...
    def drain_metrics(self) -> Metrics: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...
    def begin_anew(self, states: Sequence[State]) -> None: ...

    @property
    def env(self) -> Env: ...
    @property
    def exactness(self) -> str: ...


class LocalSource:
    """Collects in place: publishing moves nothing, because the collector holds the module that is trained."""

    def __init__(self, settings: PartSettings, collector: SyncCollector) -> None:
        self.settings = settings
        self.collector = collector
        self.version = 0
        self.open_block: Rollout | None = None

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

    def publish(self, version: int, policy: Policy) -> None:
        self.version = version

    def set_env_parameters(self, values: Parameters) -> None:
        """Changes named numbers of the task in all training lanes."""
        self.collector.env.set_parameters(values)

    def end_episode(self) -> None:
        """Cuts the episodes that are going on and begins new ones; only between rollouts."""
        self.collector.start_episodes()

    def listen(self, on_step: StepListener | None) -> None:
        """Lets a function see every step from now on, or none."""
        self.collector.on_step = on_step

    @contextmanager
    def heard_by(self, on_step: StepListener) -> Iterator[None]:
        """Lets a function see the steps of this block only; who listened before hears them too."""
        before = self.collector.on_step
        self.collector.on_step = on_step if before is None else _both(before, on_step)
        try:
            yield
        finally:
            self.collector.on_step = before

    def wait(self) -> None:
        """Returns at once: acting happens inside `fill`, so there is nobody to wait for."""

    def close(self) -> None:
        self.collector.env.close()

    def drain_seconds(self) -> dict[str, float]:
        """Returns and forgets the seconds spent acting and stepping."""
        seconds, self.collector.seconds = self.collector.seconds, {"act": 0.0, "env": 0.0}
        return seconds

    def drain_metrics(self) -> Metrics:
        return self.collector.drain_metrics()

    @property
    def env(self) -> Env:
        return self.collector.env

    @property
    def exactness(self) -> str:
        return self.collector.env.exactness

    def state_dict(self) -> State:
        return {"collector": self.collector.state_dict(), "version": self.version}

    def load_state_dict(self, state: State) -> None:
        self.version = state["version"]
        self.collector.load_state_dict(state["collector"])

    def begin_anew(self, states: Sequence[State]) -> None:
        """Continues after sources that had other lanes: the newest version, new episodes, noise not used before."""
        self.version = max(state["version"] for state in states)
        self.collector.begin_anew([state["collector"] for state in states])


def _both(first: StepListener, second: StepListener) -> StepListener:
    def listen(step: Any, info: dict[str, Any]) -> None:
        first(step, info)
        second(step, info)

    return listen
