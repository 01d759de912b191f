"""Distributions of actions, to be compared with those of another policy."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quintain.policies.heads import CategoricalHead, GaussianHead, Head, MultiCategoricalHead
from quintain.policies.joint_head import JointHead


@dataclass(frozen=True)
class ActionDistribution:
    """The distributions of the actions of a batch: a head and its inputs [B, outputs]."""

    head: JointHead
    output: torch.Tensor
    mask: torch.Tensor | None = None

    def kl(self, other: ActionDistribution) -> torch.Tensor:
        """Returns KL(self || other) of each row [B], the sum over the leaves of the action, as far as they count."""
        total = torch.zeros_like(self.output[:, 0])
        for name, head, theirs, (columns, _, options) in zip(
            self.head.names, self.head.parts, other.head.parts, self.head.columns, strict=True
        ):
            ours = self.head.seen_by(head, self.output, columns)
            others = other.head.seen_by(theirs, other.output, columns)
            allowed = None if self.mask is None or not head.num_options else self.mask[:, options]
            weight = self.head.weight_of(name, self.output, self.mask)
            total = total + weight * _kl(head, ours, theirs, others, allowed)
        return total


def _kl(
    head: Head, output: torch.Tensor, other: Head, other_output: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    if isinstance(head, GaussianHead) and isinstance(other, GaussianHead):
        # Squashing both alike does not change it.
        mean, log_std = head.mean_and_log_std(output)
        other_mean, other_log_std = other.mean_and_log_std(other_output)
        spread = (2.0 * log_std).exp() + (mean - other_mean).square()
        return (other_log_std - log_std + 0.5 * spread * (-2.0 * other_log_std).exp() - 0.5).sum(dim=-1)
    assert isinstance(head, CategoricalHead | MultiCategoricalHead)
    # Log-probabilities of several discrete actions lie side by side, and so do the terms of their sums.
    log_probs = head.log_probs(output, mask)
    return (log_probs.exp() * (log_probs - head.log_probs(other_output, mask))).sum(dim=-1)
