"""Acts for all agents of one behaviour that request a decision, in one forward pass, and collects trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import torch

from quintain.core.rng import Rng
from quintain.core.state import KeepsState
from quintain.data import fields as f
from quintain.data.fields import Declared, resolve_fields
from quintain.data.rollout import Slot
from quintain.data.sequence_block import SequenceBlock
from quintain.data.spec import BehaviorSpec, BoxSpec, build, flatten, leaves, require_choices
from quintain.data.trajectory import Closed, TrajectoryBlock
from quintain.envs.agents.boundary import Reports
from quintain.errors import SettingsError
from quintain.policies.base import Policy, fill_noise
from quintain.rollouts.agent_assembler import AgentAssembler, Episodes
from quintain.rollouts.row_slots import RowSlots

if TYPE_CHECKING:
    from quintain.typing import Array, State

NOISE_STEPS = 32
"""Number of steps for which noise is drawn at once."""
MIN_NOISE_ROWS = 4
"""Minimum number of agents for which noise is drawn, so that few group sizes need another draw."""


def _ignore(played: object) -> None:
    """Ignores episodes."""


class TakesTrajectories(Protocol):
    """The destination of trajectories that end."""

    def append(self, closed: Closed, steps: Mapping[str, Array]) -> None: ...


class AgentCollector(KeepsState):
    """Chooses actions and assembles trajectories; its state covers all agents."""

    not_state: ClassVar[frozenset[str]] = frozenset(
        {
            "spec",
            "policy",
            "rng",
            "on_episodes",
            "on_numbered",
            "on_dropped",
            "row_slots",
            "noise",
            "noise_from",
            "action_names",
            "written_names",
            "number_name",
            "choice_name",
            "seconds",
            "is_deterministic",
            "fields",
        }
    )

    saved_counts: ClassVar[frozenset[str]] = frozenset({"num_acts"})

    def __init__(
        self,
        policy: Policy,
        horizon: int,
        rng: Rng,
        on_episodes: Callable[[Array, Array], None],
        fields: Declared | None = None,
    ) -> None:
        """Makes a collector; of the declared `fields` it writes those of the policy and those of teammates."""
        if policy.device.type != "cpu":
            raise SettingsError("agents that come and go are acted for on the CPU; set run.device to cpu", code="E0218")
        self.policy = policy
        self.spec: BehaviorSpec = policy.spec
        self.rng = rng
        self.on_episodes = on_episodes
        self.on_numbered: Callable[[Episodes], None] = _ignore
        self.on_dropped: Callable[[Array], None] = _ignore
        """Callback for the numbers of episodes that were dropped because a value was not finite."""
        teammates = {name: each for name, each in (fields or {}).items() if each.per == "teammate"}
        self.fields: Declared = {**policy.declare_fields(), **teammates}
        self.assembler = AgentAssembler(policy.spec, horizon, self.fields)
        self.seen: dict[str, Array] = {
            name: rows[:, 0] for name, rows in self.assembler.steps.items() if _is_seen(name)
        }
        """Observations of the agents that request a decision, by field name, [n, ...]."""
        self.num_acts = 0
        self.is_deterministic = False
        kinds = leaves(policy.spec.action, f.ACTION)
        self.action_names = list(kinds)
        standard, declared = (resolve_fields(policy.spec, each) for each in ({}, policy.declare_fields()))
        self.written_names = [f.LOG_PROB, f.VALUE, *(name for name in declared if name not in standard)]
        self.number_name = next((name for name, leaf in kinds.items() if isinstance(leaf, BoxSpec)), None)
        self.choice_name = next((name for name, leaf in kinds.items() if not isinstance(leaf, BoxSpec)), None)
        self.row_slots = RowSlots(policy.spec, policy.declare_fields())
        self.noise = np.zeros((NOISE_STEPS, 0, policy.noise.size), np.float32)
        self.noise_from = -1
        self.seconds = 0.0

    def load_state_dict(self, state: State) -> None:
        num_deciding = len(state["assembler"]["deciding"])
        for name, rows in state["seen"].items():
            if len(rows) != num_deciding:
                raise ValueError(f"{name} is of {len(rows)} agents, expected the {num_deciding} that decide")
        for name, leaf in leaves(self.spec.obs, f.OBS).items():
            require_choices(leaf, name, state["seen"][name])
        super().load_state_dict(state)

    def take_in(self, ends: Reports, decisions: Reports, block: TakesTrajectories | None) -> None:
        """Processes one step of the environment; trajectories that ended go to the block, if any."""
        self.assembler.hear(ends, decisions)
        if len(ends):
            closed, played = self.assembler.end(ends)
            if len(self.assembler.dropped):
                self.on_dropped(self.assembler.dropped)
                self.assembler.dropped = self.assembler.dropped[:0]
            if len(played.lengths):
                if block is not None:
                    block.append(closed, self.assembler.steps)
                self.on_episodes(played.returns, played.lengths)
                self.on_numbered(played)
        closed = self.assembler.decide(decisions)
        if block is not None and len(closed.lengths):
            block.append(closed, self.assembler.steps)
        self.seen = dict(decisions.obs) if decisions.mask is None else {**decisions.obs, f.ACTION_MASK: decisions.mask}

    def act(self, version: int) -> tuple[Array, Array]:
        """Returns continuous and discrete actions [n, ...] of agents that request a decision, for `set_actions`."""
        started = perf_counter()
        num_agents = len(self.assembler.deciding)
        slot = self._slot(num_agents)
        for name, rows in self.seen.items():
            slot.arrays[name][:num_agents] = rows
        state = self._state(slot, num_agents)
        self.policy.act(slot, state, deterministic=self.is_deterministic)
        acted = {name: slot.arrays[name][:num_agents] for name in (*self.action_names, *self.written_names)}
        after = None if state is None else state.numpy()[:num_agents]
        self.assembler.act({**self.seen, **acted, f.POLICY_VERSION: version}, after)
        chosen = flatten(self.spec.action, self.policy.env_action(slot), f.ACTION)
        self.num_acts += 1
        self.seconds += perf_counter() - started
        return _rows(chosen, self.number_name, num_agents, np.float32), _rows(
            chosen, self.choice_name, num_agents, np.int32
        )

    def _state(self, slot: Slot, num_agents: int) -> torch.Tensor | None:
        """Returns the hidden state of the deciding agents, and tells the policy whose episodes begin."""
        if not self.policy.state_size:
            return None
        slot.arrays[f.FIRST][:num_agents] = self.assembler.are_first
        state = torch.zeros((len(slot.log_prob), self.policy.state_size))
        state.numpy()[:num_agents] = self.assembler.state[self.assembler.deciding]
        return state

    def finish(self, block: TakesTrajectories) -> None:
        """Closes a block for learning; one that keeps trajectories as objects is complete already."""
        if isinstance(block, TrajectoryBlock | SequenceBlock):
            close_block(block, self.policy)

    def forget(self) -> None:
        """Drops all agents and their open trajectories, because the environment was reset."""
        self.assembler = AgentAssembler(self.spec, self.assembler.horizon, self.fields)

    def _slot(self, num_agents: int) -> Slot:
        """Returns memory for at least so many agents, with the noise of this step."""
        slot = self.row_slots.slot(num_agents)
        num_rows = len(slot.log_prob)
        slot.arrays[f.NOISE][...] = self._noise(max(MIN_NOISE_ROWS, num_rows))[:num_rows]
        return slot

    def _noise(self, num_rows: int) -> Array:
        """Returns noise that depends on the index of the act and of the row only."""
        first = self.num_acts - self.num_acts % NOISE_STEPS
        if self.noise_from != first or self.noise.shape[1] < num_rows:
            spec, rows = self.policy.noise, max(num_rows, self.noise.shape[1])
            self.noise = np.zeros((NOISE_STEPS, rows, spec.size), np.float32)
            fill_noise(self.noise, spec, self.rng, first, first_lane=0)
            self.noise_from = first
        return self.noise[self.num_acts - first, :num_rows]


def _rows(chosen: dict[str, torch.Tensor], name: str | None, num_agents: int, dtype: type) -> Array:
    return np.zeros((num_agents, 0), dtype) if name is None else chosen[name].numpy()[:num_agents]


def close_block(block: TrajectoryBlock | SequenceBlock, policy: Policy) -> None:
    """Closes a block, and computes the bootstrap values of its trajectories."""
    block.seal()
    open_ends = block.storage[f.FINAL_INDEX][:-1] >= 0
    if f.ENDS in block.fields and not block.has_many_values:
        # Kept for a reward signal; nothing is to be expected there.
        open_ends &= ~block.storage[f.TERMINATED][:-1]
    if open_ends.any():
        rows = block.final.take(block.storage[f.FINAL_INDEX][:-1][open_ends].long())
        with torch.no_grad():
            values = policy.value_of(build(policy.spec.obs, rows, f.OBS), rows[f.POLICY_STATE])
            block.storage[f.FINAL_VALUE][:-1][open_ends] = values


def _is_seen(name: str) -> bool:
    return name == f.ACTION_MASK or name.partition(".")[0] == f.OBS
