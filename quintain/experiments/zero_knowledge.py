"""The reward signal of zero-knowledge protocols: the similarity of an adversarial verifier and a simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn import functional

from quintain.data import fields as f
from quintain.data.spec import discrete_sizes
from quintain.errors import SettingsError
from quintain.experiments.protocols.base import DECISIONS
from quintain.policies.team import LOGITS
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.data.rollout import Rollout
    from quintain.rewards.settings import ZeroKnowledgeSettings
    from quintain.typing import Array


class ZeroKnowledge(RewardSignal):
    """Pays each agent of a team its weight times the similarity. The last two agents are those that are compared."""

    settings: ZeroKnowledgeSettings
    sees_next_obs: ClassVar[bool] = False

    def evaluate(self, rollout: Rollout) -> Array:
        weights = torch.tensor(self.settings.weights)
        if LOGITS not in rollout.storage or f.ACTION_MASK not in rollout.storage:
            raise SettingsError(
                "reward signal zero_knowledge compares logits: set policy.type to team and policy.keep_logits to true",
                code="E0205",
            )
        if len(weights) < 2 or rollout.num_lanes % len(weights):
            raise SettingsError(
                f"reward signal zero_knowledge: found {len(weights)} weights, expected one for each agent of the team",
                code="E0205",
            )
        shape = (rollout.num_steps, -1, len(weights), rollout.storage[LOGITS].shape[-1])
        logits, allowed = (rollout.storage[name][:-1].reshape(shape) for name in (LOGITS, f.ACTION_MASK))
        *messages, _ = discrete_sizes(self.spec.action)
        found = similarity(logits[..., -2, :], logits[..., -1, :], allowed[..., -2, :], len(messages) // 3, messages[0])
        paid: Array = (found[..., None] * weights).flatten(1).numpy()
        return paid


def similarity(
    adversary: torch.Tensor, simulator: torch.Tensor, allowed: torch.Tensor, num_channels: int, num_options: int
) -> torch.Tensor:
    """Returns the cosine of message logits plus the cosine of decision logits [...], of all logits [..., L].

    Messages are those of the adversarial verifier in the second of three groups of channels, and of the simulator in
    the third. Both count only where the adversarial verifier has a choice, by its mask `allowed [..., L]`.
    """
    size = num_channels * num_options
    own = allowed[..., size : 2 * size].reshape(*allowed.shape[:-1], num_channels, num_options)
    speaks = (own.sum(-1) > 1).repeat_interleave(num_options, dim=-1).float()
    said, imitated = adversary[..., size : 2 * size] * speaks, simulator[..., 2 * size : 3 * size] * speaks
    can_decide = (allowed[..., 3 * size :].sum(-1) > 1).float()
    last = slice(3 * size, 3 * size + len(DECISIONS))
    decided = functional.cosine_similarity(adversary[..., last], simulator[..., last], dim=-1)
    return functional.cosine_similarity(said, imitated, dim=-1) + decided * can_decide
