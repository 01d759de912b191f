"""Compiled acting of a team: one call for each agent, which reads and writes the agent's own lanes in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch

from quintain.compiled.acting import ActionColumns, no_action
from quintain.compiled.kernels.tables import ACTIVATIONS, NUM_OUTPUTS, TANH, ActingScratch, AgentTables, Step
from quintain.compiled.kernels.team import act_agent
from quintain.compiled.policy_tables import KernelWeights, aligned_zeros, discrete_tables_of, places_of, tile_size
from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import leaves
from quintain.policies.networks import Mlp
from quintain.policies.team import SEEN, TeamAgent, TeamPolicy

if TYPE_CHECKING:
    from torch import nn

    from quintain.compiled.runtime.kernel import Call
    from quintain.typing import Array

_NO_ACTIVATION = -1
_NO_WEIGHTS = np.zeros(0, np.float32)


class PreparedTeamStep(NamedTuple):
    """The agents' calls at one time step, made once: memory does not move between rollouts."""

    acting: TeamActing
    addresses: tuple[int, ...]
    """Of the first weight of each agent that has any."""
    is_likeliest: bool
    calls: list[Call[None]]


class TeamActing:
    """Computes actions and values of whole conversations, in which the agents' rows follow each other in order."""

    policy_class: ClassVar = TeamPolicy
    kernel: ClassVar = act_agent

    def __init__(self, policy: TeamPolicy) -> None:
        self.policy = policy
        self.num_logits = policy.head.output_size
        self.actions = ActionColumns(leaves(policy.spec.action, f.ACTION))
        learned = {name: agent for name, agent in policy.agents.items() if isinstance(agent, TeamAgent)}
        self.weights = {name: KernelWeights(agent) for name, agent in learned.items()}
        self.tables = [_tables_of(policy, learned.get(name)) for name in policy.agent_names]
        widths = [int(each.layers[:, NUM_OUTPUTS].sum()) for each in self.tables]
        self.num_units = policy.num_seen + max(widths)
        self.scratch: dict[int, ActingScratch] = {}

    def act(self, slot: Slot, state: torch.Tensor | None, *, deterministic: bool) -> None:
        """Reads observations and noise of one time step and writes actions, log-probabilities and values to it."""
        prepared: PreparedTeamStep | None = slot.prepared
        if (
            prepared is None
            or prepared.acting is not self
            or prepared.is_likeliest is not deterministic
            or not all(map(KernelWeights.is_at, self.weights.values(), prepared.addresses))
        ):
            prepared = slot.prepared = self._prepare(slot, deterministic)
        for call in prepared.calls:
            call()

    def values(self, obs: Mapping[str, torch.Tensor], state: torch.Tensor | None) -> torch.Tensor:
        """Returns the values [B] of observations, by field name."""
        seen = obs[SEEN].flatten(1).numpy()
        value = np.zeros(len(seen), np.float32)
        num_agents = len(self.tables)
        for number, flat in enumerate(self._flats()):
            rows = seen[number::num_agents]
            step = no_action(value[number::num_agents])
            act_agent(self.tables[number], flat, rows, step, False, self._scratch(len(rows)))
        return torch.from_numpy(value)

    def squashed_actions(self, slot: Slot) -> dict[str, torch.Tensor]:
        """Returns the leaves of a step's action: all are discrete, so none is squashed."""
        return {name: slot.leaves[name] for name in self.actions.choices}

    def _prepare(self, slot: Slot, is_likeliest: bool) -> PreparedTeamStep:
        arrays, num_agents = slot.arrays, len(self.tables)
        choices, numbers = self.actions.views(arrays)
        seen = arrays[SEEN].reshape(len(choices), -1)
        allowed = arrays.get(f.ACTION_MASK)
        if allowed is None:
            allowed = np.zeros((len(choices), 0), np.bool_)
        components = np.zeros((len(choices), 0), np.float32)
        fields = (arrays[f.NOISE], allowed, choices, numbers, components, arrays[f.LOG_PROB], arrays[f.VALUE])
        calls = []
        for number, flat in enumerate(self._flats()):
            own = slice(number, None, num_agents)
            step, rows = Step(*(field[own] for field in fields)), seen[own]
            scratch = self._scratch(len(rows))
            calls.append(act_agent.bind(self.tables[number], flat, rows, step, is_likeliest, scratch))
        addresses = tuple(each.addresses[0] for each in self.weights.values())
        return PreparedTeamStep(self, addresses, is_likeliest, calls)

    def _flats(self) -> list[Array]:
        names = self.policy.agent_names
        return [self.weights[name].array() if name in self.weights else _NO_WEIGHTS for name in names]

    def _scratch(self, num_rows: int) -> ActingScratch:
        scratch = self.scratch.get(num_rows)
        if scratch is None:
            size = tile_size(num_rows)
            units, slopes = (aligned_zeros(self.num_units, size) for _ in range(2))
            scratch = ActingScratch(aligned_zeros(0, 0), units, slopes, aligned_zeros(self.num_logits, num_rows))
            # Few sizes come again and again; many would be a leak.
            self.scratch = {num_rows: scratch} if len(self.scratch) > 4 else {**self.scratch, num_rows: scratch}
        return scratch


def _tables_of(policy: TeamPolicy, agent: TeamAgent | None) -> AgentTables:
    """Returns the tables of one agent; its layers are numbered as its parameters are."""
    head = discrete_tables_of(policy.head)
    if agent is None:
        return AgentTables(np.zeros((0, 7), np.int64), 0, 0, head)
    places, rows, next_unit = places_of(agent), [], policy.num_seen

    def add(weight: torch.Tensor, bias: torch.Tensor, first_input: int, activation: int) -> int:
        nonlocal next_unit
        num_outputs, num_inputs = weight.shape
        unit, next_unit = next_unit, next_unit + num_outputs
        rows.append((places[id(weight)], places[id(bias)], num_inputs, num_outputs, first_input, unit, activation))
        return unit

    def add_body(body: nn.Module) -> int:
        [network] = [part for part in body.modules() if isinstance(part, Mlp)]
        *hidden, last = network.weights_and_biases
        unit = 0
        for weight, bias in hidden:
            unit = add(weight, bias, unit, ACTIVATIONS.index(policy.settings.activation))
        return add(*last, unit, TANH)

    features = add_body(agent.body)
    value_features = features if agent.value_body is None else add_body(agent.value_body)
    first_logit = add(agent.policy_head.weight, agent.policy_head.bias, features, _NO_ACTIVATION)
    value = add(agent.value_head.weight, agent.value_head.bias, value_features, _NO_ACTIVATION)
    return AgentTables(np.array(rows, np.int64), first_logit, value, head)
