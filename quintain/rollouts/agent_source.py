"""The acting half for agents that come and go: one environment for all behaviours, and one source for each of them.

Whoever asks for experience steps the environment for everybody. It stops as soon as any behaviour has enough for an
update, so that nobody acts with a policy that should have learned already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from quintain.core.state import KeepsState, require_count
from quintain.envs.agents.env import AgentEnv
from quintain.errors import EnvError, SettingsError
from quintain.policies.base import Policy
from quintain.rollouts.agent_collector import AgentCollector
from quintain.rollouts.store import RolloutStore, TrajectoryStore
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.envs.parameters import Parameters
    from quintain.rollouts.sync_collector import StepListener
    from quintain.typing import Metrics, State

MAX_IDLE_STEPS = 10_000
"""Steps of the environment in a row at which nobody wants a decision, after which something must be wrong."""


def _nobody(behavior: str) -> bool:
    return False


class AgentWorld(KeepsState):
    """Steps an environment and lets the collectors of all behaviours follow their agents: the source of them all."""

    not_state: ClassVar[frozenset[str]] = frozenset({"stores", "seconds", "num_idle_steps"})
    saved_counts: ClassVar[frozenset[str]] = frozenset({"num_steps"})

    def __init__(
        self, env: AgentEnv, collectors: Mapping[str, AgentCollector], stores: Mapping[str, TrajectoryStore]
    ) -> None:
        self.env = env
        self.collectors = dict(collectors)
        self.stores = dict(stores)
        self.versions = dict.fromkeys(collectors, 0)
        self.num_steps = 0
        self.num_idle_steps = 0
        self.seconds = 0.0
        self._refuse_strangers()
        self._read({})

    def load_state_dict(self, state: State) -> None:
        for name in self.versions:
            require_count(f"versions.{name}", state["versions"][name])
        super().load_state_dict(state)
        if self.env.exactness != "exact":
            self.start_episodes()

    def fill(self, behavior: str, should_stop: Callable[[], bool], needs: Callable[[str], bool]) -> bool:
        """Steps until this behaviour has enough; False if another has first, or if asked to stop.

        `needs` says of a behaviour whether it still learns; the others act on, and what they do is kept nowhere.
        """
        store = self.stores[behavior]
        with torch.inference_mode():
            while not store.has_waiting:
                if should_stop() or self._somebody_waits(needs):
                    return False
                self._step(needs)
        return True

    def _somebody_waits(self, needs: Callable[[str], bool]) -> bool:
        """Says whether a behaviour has enough to learn from, and has not been asked yet."""
        return any(store.has_waiting and needs(name) for name, store in self.stores.items())

    def play(self, num_steps: int, should_stop: Callable[[], bool]) -> None:
        """Lets all agents act for so many steps; nothing of it is kept."""
        with torch.inference_mode():
            for _ in range(num_steps):
                if should_stop():
                    return
                self._step(_nobody)

    def _step(self, needs: Callable[[str], bool]) -> None:
        blocks = {name: self._block(name) for name in self.collectors if needs(name)}
        is_idle = True
        for name, collector in self.collectors.items():
            if len(collector.assembler.deciding):
                self.env.set_actions(name, *collector.act(self.versions[name]))
                is_idle = False
        self._count_idle(is_idle)
        started = perf_counter()
        self.env.step()
        self.num_steps += 1
        self._refuse_strangers()
        self._read(blocks)
        self.seconds += perf_counter() - started
        for name, block in blocks.items():
            store = self.stores[name]
            if block is not None and store.is_full:
                self.collectors[name].finish(block)
                store.commit(block)

    def _read(self, blocks: Mapping[str, Any]) -> None:
        for name, collector in self.collectors.items():
            ends, decisions = self.env.read(name)
            collector.take_in(ends, decisions, blocks.get(name))

    def _block(self, name: str) -> Any:
        store = self.stores[name]
        if store.is_spent:
            # Its trainer frees it when it collects again, which may be long after others made agents go on.
            store.release()
        if not store.is_lent and store.reserve() is None:
            return None
        return store.trajectories

    def _count_idle(self, is_idle: bool) -> None:
        self.num_idle_steps = self.num_idle_steps + 1 if is_idle else 0
        if self.num_idle_steps > MAX_IDLE_STEPS:
            raise EnvError(
                f"no agent wanted a decision in {MAX_IDLE_STEPS} steps of the environment; check that its agents "
                f"request decisions",
                code="E0511",
            )

    def _refuse_strangers(self) -> None:
        if len(self.env.specs) == len(self.collectors):
            return
        strangers = [name for name in self.env.specs if name not in self.collectors]
        raise EnvError(
            f"the environment has agents of behaviour {', '.join(map(repr, strangers))}, for which nothing was set up",
            code="E0511",
        )

    def start_episodes(self) -> None:
        """Resets the environment and drops all open trajectories."""
        self.env.reset()
        for collector in self.collectors.values():
            collector.forget()
        self._read({})

    @property
    def exactness(self) -> str:
        """Says how exactly a resumed run continues: "exact", or "statistical: <why>"."""
        return self.env.exactness

    def drain_seconds(self) -> dict[str, float]:
        """Returns and forgets the seconds spent acting and stepping."""
        seconds = {"act": sum(collector.seconds for collector in self.collectors.values()), "env": self.seconds}
        for collector in self.collectors.values():
            collector.seconds = 0.0
        self.seconds = 0.0
        return seconds

    supervisors: Sequence[Supervisor] = ()

    def wait(self) -> None:
        """Returns at once: acting happens inside `fill`, so there is nobody to wait for."""

    def pause(self, should_stop: Callable[[], bool]) -> None:
        """Returns at once: nothing happens outside `fill`."""

    def trigger(self, name: str, lanes: Any) -> None:
        """Does nothing: an environment of agents has no events."""

    def idle_env_events(self) -> list[str]:
        return []

    def close(self) -> None:
        self.env.close()

    def begin_anew(self, states: Sequence[State]) -> None:
        raise SettingsError("agents that come and go cannot be dealt to another number of ranks", code="E0226")


class AgentSource:
    """The share of one behaviour in a world that all behaviours act in."""

    def __init__(
        self, behavior: str, world: AgentWorld, needs: Callable[[str], bool], is_stopping: Callable[[], bool]
    ) -> None:
        """Makes the share; `needs` says whether a behaviour still learns, `is_stopping` whether all are to stop."""
        self.behavior = behavior
        self.world = world
        self.needs = needs
        self.is_stopping = is_stopping

    def fill(self, store: RolloutStore, should_stop: Callable[[], bool]) -> bool:
        return self.world.fill(self.behavior, lambda: self.is_stopping() or should_stop(), self.needs)

    def publish(self, version: int, policy: Policy) -> None:
        """Lets agents act with these weights from now on; a copy of the policy gets them in place."""
        self.world.versions[self.behavior] = version
        acting = self.world.collectors[self.behavior].policy
        if acting is not policy:
            with torch.no_grad():
                for mine, new in zip(acting.state_dict().values(), policy.state_dict().values(), strict=True):
                    mine.copy_(new)

    def set_env_parameters(self, values: Parameters) -> None:
        """Changes numbers of the task in all copies; one number for all agents."""
        self.world.env.set_parameters({name: float(value) for name, value in values.items()})

    def require_env_parameters(self, names: Sequence[str]) -> None:
        """Refuses nothing: what `set_parameters` of an environment of agents knows, nobody can say."""

    def end_episode(self) -> None:
        self.world.start_episodes()

    def listen(self, on_step: StepListener | None) -> None:
        raise SettingsError("steps of agents that come and go have no common slot to listen to")

    @contextmanager
    def heard_by(self, on_step: StepListener) -> Iterator[None]:
        self.listen(on_step)
        yield

    supervisors: Sequence[Supervisor] = ()

    def wait(self) -> None:
        """Returns at once: acting happens inside `fill`, so there is nobody to wait for."""

    def pause(self, should_stop: Callable[[], bool]) -> None:
        """Returns at once: nothing happens outside `fill`."""

    def trigger(self, name: str, lanes: Any) -> None:
        """Does nothing: an environment of agents has no events."""

    def idle_env_events(self) -> list[str]:
        return []

    def close(self) -> None:
        """Leaves the world alone, which others may still need; whoever owns it closes it."""

    def drain_seconds(self) -> dict[str, float]:
        """Returns nothing: the world's clock is read once, for all behaviours."""
        return {}

    def drain_metrics(self) -> Metrics:
        assembler = self.world.collectors[self.behavior].assembler
        mended = {"rollout/dropped_episodes": assembler.num_dropped, "rollout/clamped_steps": assembler.num_clamped}
        return {
            "rollout/buffer_utilisation": self.world.stores[self.behavior].utilisation,
            **{name: float(count) for name, count in mended.items() if count},
        }

    @property
    def env(self) -> Any:
        return self.world.env

    @property
    def exactness(self) -> str:
        return self.world.env.exactness

    def state_dict(self) -> State:
        """Saves nothing: the world that all behaviours share is saved once, by whoever owns it."""
        return {}

    def load_state_dict(self, state: State) -> None:
        pass

    def begin_anew(self, states: Sequence[State]) -> None:
        """Does nothing: the world is dealt as a whole."""
