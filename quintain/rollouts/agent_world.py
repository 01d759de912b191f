"""Steps one environment of agents that come and go, with the collectors of all its behaviours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar

import torch

from quintain.core.state import KeepsState, require_count
from quintain.data.sequence_block import SequenceBlock
from quintain.data.trajectory import TrajectoryBlock
from quintain.envs.agents.env import AgentEnv
from quintain.errors import EnvError, SettingsError
from quintain.policies.base import Policy
from quintain.rollouts.agent_collector import AgentCollector
from quintain.rollouts.source import BehaviorListener, Orders

if TYPE_CHECKING:
    from quintain.rollouts.sync_collector import StepListener
    from quintain.typing import Array, Metrics, State

MAX_IDLE_STEPS = 10_000
"""Maximum number of steps in a row without a decision request, after which an error is raised."""


Blocks = Mapping[str, TrajectoryBlock | SequenceBlock]


def _ignore(behavior: str, returns: object, lengths: object) -> None:
    """Ignores episodes."""


class AgentWorld(KeepsState):
    """The collector of all behaviours of an environment: one collector per behaviour, over the same steps."""

    not_state: ClassVar[frozenset[str]] = frozenset(
        {"seconds", "num_idle_steps", "on_episodes", "policies", "fills_all"}
    )
    saved_counts: ClassVar[frozenset[str]] = frozenset({"num_steps"})

    def __init__(
        self,
        env: AgentEnv,
        collectors: Mapping[str, AgentCollector],
        on_episodes: BehaviorListener = _ignore,
        *,
        fills_all: bool = False,
    ) -> None:
        """Takes one collector per behaviour; with `fills_all`, a fill ends when the blocks of all are full.

        Of several collectors each would otherwise fill the block of another behaviour first.
        """
        self.env = env
        self.fills_all = fills_all
        self.collectors = dict(collectors)
        self.policies: Mapping[str, Policy] = {name: collector.policy for name, collector in collectors.items()}
        self.on_episodes = on_episodes
        for name, collector in self.collectors.items():
            # Not the listener itself, which may be connected later.
            collector.on_episodes = partial(self._tell, name)
        self.versions = dict.fromkeys(collectors, 0)
        self.num_steps = 0
        self.num_idle_steps = 0
        self.seconds = 0.0
        self._refuse_strangers()
        self._read({})

    def _tell(self, behavior: str, returns: Array, lengths: Array) -> None:
        self.on_episodes(behavior, returns, lengths)

    def load_state_dict(self, state: State) -> None:
        for name in self.versions:
            require_count(f"versions.{name}", state["versions"][name])
        super().load_state_dict(state)
        if self.env.exactness != "exact":
            self.start_episodes()

    def fill(self, orders: Orders, should_stop: Callable[[], bool]) -> list[str]:
        """Steps until the block of any behaviour is full, or of all; behaviours without one to fill continue to act."""
        blocks: Blocks = {name: block for name, (block, _) in orders.items()}  # type: ignore[misc]  # it was given none but those of trajectories
        for name, (_, version) in orders.items():
            self.versions[name] = version
        full: list[str] = []
        if self.fills_all:
            # A stop may have left some of them full.
            full = [name for name, block in blocks.items() if block.num_held >= block.num_wanted]
        with torch.inference_mode():
            while len(full) < (len(blocks) if self.fills_all else 1):
                if should_stop():
                    return []
                self._step({name: block for name, block in blocks.items() if name not in full} if full else blocks)
                full = [name for name, block in blocks.items() if block.num_held >= block.num_wanted]
            for name in full:
                self.collectors[name].finish(blocks[name])
        return full

    def act_on(self, behavior: str, version: int) -> None:
        self.versions[behavior] = version

    def play(self, num_steps: int, should_stop: Callable[[], bool]) -> None:
        """Acts for so many steps and discards the data."""
        with torch.inference_mode():
            for _ in range(num_steps):
                if should_stop():
                    return
                self._step({})

    def _step(self, blocks: Blocks) -> None:
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

    def _read(self, blocks: Blocks) -> None:
        for name, collector in self.collectors.items():
            ends, decisions = self.env.read(name)
            collector.take_in(ends, decisions, blocks.get(name))

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

    def begin_anew(self, states: Sequence[State]) -> None:
        """Starts new episodes after worlds with other copies; noise continues at an unused step."""
        self.start_episodes()
        for name, collector in self.collectors.items():
            collector.num_acts = max(state["collectors"][name]["num_acts"] for state in states)

    def drain_seconds(self) -> dict[str, float]:
        """Returns the seconds spent acting and stepping since the last call."""
        seconds = {"act": sum(collector.seconds for collector in self.collectors.values()), "env": self.seconds}
        for collector in self.collectors.values():
            collector.seconds = 0.0
        self.seconds = 0.0
        return seconds

    def drain_metrics(self, behavior: str) -> Metrics:
        """Returns the counts of values that were not finite, clamped or dropped."""
        assembler = self.collectors[behavior].assembler
        mended = {"rollout/dropped_episodes": assembler.num_dropped, "rollout/clamped_steps": assembler.num_clamped}
        return {"rollout/buffer_utilisation": 1.0, **{name: float(count) for name, count in mended.items() if count}}

    @property
    def on_step(self) -> StepListener | None:
        return None

    @on_step.setter
    def on_step(self, listener: StepListener | None) -> None:
        if listener is not None:
            raise SettingsError("steps of agents that come and go have no common slot to listen to")
