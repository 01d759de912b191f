"""A team of agents in one policy: every agent has a body and heads of its own, and acts in its own lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import nn

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fields import Declared, Field
from quintain.data.rollout import Slot
from quintain.data.spec import BehaviorSpec, BoxSpec, DictSpec, DiscreteSpec, build, discrete_sizes, flatten
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies.base import Policy
from quintain.policies.joint_head import JointHead
from quintain.policies.networks import linear, mlp, uniform_linear
from quintain.policies.settings import TeamSettings
from quintain.typing import Keyword

if TYPE_CHECKING:
    from quintain.typing import Array

AGENT, SEEN = f"{f.OBS}.agent", f"{f.OBS}.seen"
"""Leaves of a team's observations: whose lane it is, and the values that this agent sees."""
LOGITS = "logits"
"""The field of all logits of an agent, with `keep_logits`."""
HandWritten: TypeAlias = Callable[[torch.Tensor, int], torch.Tensor]
"""A hand-written agent: maps what it sees [B, size] and the number of logits to logits [B, logits]."""


class TeamAgent(nn.Module):
    """One agent: a body (or two), a policy head and a value head."""

    def __init__(
        self,
        settings: TeamSettings,
        input_size: int,
        output_size: int,
        generator: torch.Generator,
        gain: float | None = 1.0,
    ) -> None:
        super().__init__()
        *inner, width = settings.hidden_sizes
        is_uniform = gain is None

        def body() -> nn.Module:
            layers = mlp(
                input_size,
                tuple(inner),
                width,
                activation=settings.activation,
                output_gain=None if is_uniform else 1.0,
                generator=generator,
            )
            return nn.Sequential(layers, nn.Tanh())

        def head(size: int, own_gain: float) -> nn.Linear:
            return uniform_linear(width, size, generator) if is_uniform else linear(width, size, own_gain, generator)

        self.body = body()
        self.value_body = None if settings.shared_body else body()
        self.policy_head = head(output_size, 0.01)
        self.value_head = head(1, 1.0)
        if gain not in (None, 1.0):
            for layer in self.modules():
                if isinstance(layer, nn.Linear):
                    layer.weight.data *= gain

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the policy head's output [B, outputs] and the value [B]."""
        features = self.body(seen)
        value_features = features if self.value_body is None else self.value_body(seen)
        return self.policy_head(features), self.value_head(value_features).squeeze(-1)


class TeamPolicy(Policy):
    """Acts for all agents of a team. Agents share no parameters, so the loss of one trains only that one."""

    fits_kernels: ClassVar[bool] = True
    """Whether its networks and heads are supported by compiled kernels."""

    def __init__(self, settings: TeamSettings, spec: BehaviorSpec, rng: Rng | None = None) -> None:
        super().__init__()
        entries = dict(spec.obs.entries) if isinstance(spec.obs, DictSpec) else {}
        agent, seen = entries.get("agent"), entries.get("seen")
        if not isinstance(agent, DiscreteSpec) or not isinstance(seen, BoxSpec) or agent.n != len(settings.agents):
            raise SpecMismatch(
                f"policy team: found observations {spec.obs}, expected a Dict of "
                f"agent: Discrete({len(settings.agents)}) and seen: Box"
            )
        self.settings = settings
        self.spec = spec
        self.num_seen = seen.size
        """Number of values that an agent sees."""
        self.rng = rng or Rng(0)
        self.predict_rng = self.rng.child("predict")
        self.head = JointHead(spec.action, settings)
        self.noise = self.head.noise
        self.agent_names = settings.agents
        without_network = {*settings.random_agents, *settings.hand_written_agents}
        if unknown := without_network - set(settings.agents):
            raise SettingsError(
                f"policy: found {', '.join(sorted(unknown))} among random_agents and hand_written_agents, expected "
                f"some of {', '.join(settings.agents)}",
                code="E0205",
            )
        self.agents = nn.ModuleDict(
            {
                name: TeamAgent(
                    settings,
                    seen.size,
                    self.head.output_size,
                    self.rng.torch_generator("init", number),
                    settings.initial_gains.get(name, 1.0),
                )
                for number, name in enumerate(settings.agents)
                if name not in without_network
            }
        )
        self.hand_written: dict[str, HandWritten] = {
            name: registry.import_part("hand-written agent", path)
            for name, path in settings.hand_written_agents.items()
        }
        self.order = np.arange(0)
        """Whose rows are whose in whole conversations; as long as the largest batch so far."""
        self.num_choices = len(discrete_sizes(spec.action))
        """Number of discrete components; a mask with as many options allowed leaves nothing to choose."""

    def __init_subclass__(cls, **kwargs: Keyword) -> None:
        super().__init_subclass__(**kwargs)
        # What a subclass changes the kernels cannot know.
        cls.fits_kernels = vars(cls).get("fits_kernels", False)

    def outputs(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the head's inputs and values of rows, each by the agent whose row it is."""
        whose, seen = batch[AGENT], batch[SEEN].flatten(1)
        if self.are_conversations(whose.cpu().numpy()):
            return self.outputs_of_rows(seen.view(-1, len(self.agent_names), seen.shape[1]))
        output = seen.new_zeros((len(seen), self.head.output_size))
        value = seen.new_zeros(len(seen))
        for number, name in enumerate(self.agent_names):
            if name in self.settings.random_agents:
                continue
            rows = (whose == number).nonzero().squeeze(1)
            if not len(rows):
                continue
            if name in self.agents:
                own_output, own_value = self.agents[name](seen[rows])
                value = value.index_copy(0, rows, own_value)
            else:
                own_output = self.hand_written[name](seen[rows], self.head.output_size)
            output = output.index_copy(0, rows, own_output)
        return output, value

    def are_conversations(self, whose: Array) -> bool:
        """Whether rows are whole conversations: the agents of each in order."""
        num_agents = len(self.agent_names)
        if len(self.order) < len(whose):
            self.order = np.tile(np.arange(num_agents), -(-len(whose) // num_agents))
        return len(whose) % num_agents == 0 and bool((whose == self.order[: len(whose)]).all())

    def outputs_of_rows(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what `outputs` does, of whole conversations [rows, A, size]: the agents of each stand in order."""
        outputs, values = [], []
        for number, name in enumerate(self.agent_names):
            own = seen[:, number].contiguous()
            output, value = own.new_zeros(()), own.new_zeros(())
            if name in self.agents:
                output, value = self.agents[name](own)
            elif name not in self.settings.random_agents:
                output = self.hand_written[name](own, self.head.output_size)
            outputs.append(output.expand(len(own), self.head.output_size))
            values.append(value.expand(len(own)))
        return torch.stack(outputs, 1).flatten(0, 1), torch.stack(values, 1).flatten()

    def declare_fields(self) -> Declared:
        fields = super().declare_fields()
        return {**fields, LOGITS: Field((self.head.output_size,))} if self.settings.keep_logits else fields

    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        if slot.arrays and self.accelerator is not None and self.are_conversations(slot.arrays[AGENT]):
            self.accelerator.act(slot, state, deterministic=deterministic)
            return
        output, value = self.outputs(slot.leaves)
        if deterministic:
            slot.log_prob.copy_(self.head.mode(output, slot.leaves, slot.mask()))
        else:
            slot.log_prob.copy_(self.head.sample(output, slot.noise, slot.leaves, slot.mask()))
        slot.value.copy_(value)
        if LOGITS in slot.leaves:
            slot.leaves[LOGITS].copy_(output)

    def value_of(self, obs: Any, state: torch.Tensor | None = None, first: torch.Tensor | None = None) -> torch.Tensor:
        named = flatten(self.spec.obs, obs, f.OBS)
        if self.accelerator is not None and self.are_conversations(named[AGENT].cpu().numpy()):
            return self.accelerator.values(named, state)
        return self.outputs(named)[1]

    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        output, value = self.outputs(batch)
        log_prob, entropy = self.head.evaluate(output, dict(batch), batch.get(f.ACTION_MASK))
        return {f.LOG_PROB: log_prob, f.ENTROPY: entropy, f.VALUE: value}

    def is_active(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns which rows [B] have a choice: an inactive agent has one allowed option of each component."""
        mask = batch.get(f.ACTION_MASK)
        whose = batch[AGENT]
        return torch.ones_like(whose, dtype=torch.bool) if mask is None else mask.sum(dim=1) > self.num_choices

    def env_action(self, slot: Slot) -> Any:
        return build(self.spec.action, self.head.env_actions(slot.leaves), f.ACTION)
