"""The policy and the critics of a team as modules of TensorDicts, for loss modules that call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from quintain.data.spec import discrete_sizes
from quintain.policies.team import HandWritten, TeamAgent, TeamPolicy

OBSERVATION, ACTION, MASK = ("agents", "observation"), ("agents", "action"), ("agents", "action_mask")
LOG_PROB, VALUE, LOGITS = ("agents", "sample_log_prob"), ("agents", "value"), ("agents", "logits")
ADVANTAGE, VALUE_TARGET, ACTIVE = ("agents", "advantage"), ("agents", "value_target"), ("agents", "active")
NEXT_VALUE, NEXT_REWARD = ("next", "agents", "value"), ("next", "agents", "reward")
NEXT_DONE, NEXT_TERMINATED = ("next", "agents", "done"), ("next", "agents", "terminated")
"""Keys of a joint TensorDict; entries below `agents` have an agent dimension after the batch's."""


class CompositeCategoricalDistribution(Distribution):
    """A product of masked categoricals: the messages in all channels and the decision of each agent, [..., A].

    An inactive agent has one allowed option of each component, so its log-probability and entropy are 0.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, logits: torch.Tensor, mask: torch.Tensor | None = None, *, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        self.log_probs = [part.log_softmax(-1) for part in torch.split(logits, list(sizes), dim=-1)]
        super().__init__(logits.shape[:-1], torch.Size([len(sizes)]), validate_args=False)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the sum over components of log-probabilities [..., A] of actions [..., A, components]."""
        chosen = [part.gather(-1, value[..., i : i + 1].long()).squeeze(-1) for i, part in enumerate(self.log_probs)]
        return torch.stack(chosen).sum(0)

    def entropy(self) -> torch.Tensor:
        """Returns the sum over components of entropies [..., A]."""
        allowed = [part.where(part.isfinite(), torch.zeros_like(part)) for part in self.log_probs]
        return -torch.stack([(part.exp() * known).sum(-1) for part, known in zip(self.log_probs, allowed, strict=True)]
                            ).sum(0)  # fmt: skip

    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> torch.Tensor:
        """Returns actions [..., A, components]."""
        shape = (*sample_shape, *self.batch_shape)
        drawn = [
            torch.multinomial(part.exp().expand(*shape, -1).flatten(0, -2), 1).view(shape) for part in self.log_probs
        ]
        return torch.stack(drawn, -1)

    @property
    def mode(self) -> torch.Tensor:
        """The most likely option of each component."""
        return torch.stack([part.argmax(-1) for part in self.log_probs], -1)

    deterministic_sample = mode


class PartsOfAgents(nn.Module):
    """Bodies and heads of all agents on their own observations, [..., A, outputs]; zeros for agents without any.

    Hand-written agents have a function in place of modules.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[nn.Module, nn.Module]],
        names: Sequence[str],
        size: int,
        hand_written: Mapping[str, HandWritten] | None = None,
    ) -> None:
        super().__init__()
        self.hand_written = dict(hand_written or {})
        self.parts = nn.ModuleDict({name: nn.Sequential(*both) for name, both in parts.items()})
        self.names, self.size = tuple(names), size

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        outputs = []
        for number, name in enumerate(self.names):
            seen = observation[..., number, :]
            if name in self.parts:
                outputs.append(self.parts[name](seen))
            elif name in self.hand_written:
                rows = seen.reshape(-1, seen.shape[-1])
                outputs.append(self.hand_written[name](rows, self.size).view(*seen.shape[:-1], self.size))
            else:
                outputs.append(seen.new_zeros((*seen.shape[:-1], self.size)))
        return torch.stack(outputs, dim=-2)


def policy_operator(policy: TeamPolicy) -> ProbabilisticTensorDictSequential:
    """Returns the policy as a module that adds logits, actions and log-probabilities, and has `get_dist`."""
    agents = {name: agent for name, agent in policy.agents.items() if isinstance(agent, TeamAgent)}
    heads = {name: (agent.body, agent.policy_head) for name, agent in agents.items()}
    logits = PartsOfAgents(heads, policy.agent_names, policy.head.output_size, policy.hand_written)
    return ProbabilisticTensorDictSequential(
        TensorDictModule(logits, in_keys=[OBSERVATION], out_keys=[LOGITS]),
        ProbabilisticTensorDictModule(
            in_keys={"logits": LOGITS, "mask": MASK},
            out_keys=[ACTION],
            distribution_class=CompositeCategoricalDistribution,
            distribution_kwargs={"sizes": tuple(discrete_sizes(policy.spec.action))},
            return_log_prob=True,
            log_prob_key=LOG_PROB,
        ),
    )


def value_operator(policy: TeamPolicy) -> TensorDictModule:
    """Returns the critics as a module that adds values."""
    agents = {name: agent for name, agent in policy.agents.items() if isinstance(agent, TeamAgent)}
    heads = {name: (agent.value_body or agent.body, agent.value_head) for name, agent in agents.items()}
    return TensorDictModule(PartsOfAgents(heads, policy.agent_names, 1), in_keys=[OBSERVATION], out_keys=[VALUE])
