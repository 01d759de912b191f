"""SAC's entropy coefficient (alpha): fixed, or tuned automatically to a target entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from quintain.algorithms.settings import SACSettings
from quintain.policies.soft_actor import ActionSample

SAVED_NAMES = {"continuous": "numbers", "discrete": "choices"}
"""The names of the coefficients in checkpoints."""


class Temperature(nn.Module):
    """Entropy coefficients of continuous and discrete actions, each with a target (Haarnoja et al. 2018, eq. 18)."""

    def __init__(self, settings: SACSettings, num_continuous: int, discrete_sizes: Sequence[int]) -> None:
        super().__init__()
        self.fixed_coef = settings.entropy_coef
        self.discrete_sizes = list(discrete_sizes)
        self.fraction = settings.target_entropy_fraction
        self.target_continuous = -float(num_continuous) if settings.target_entropy is None else settings.target_entropy
        self.target_discrete = self.fraction * sum(math.log(n) for n in discrete_sizes)
        kinds = {"continuous": num_continuous > 0, "discrete": bool(discrete_sizes)}
        self.log_coefs = nn.ParameterDict(
            {
                SAVED_NAMES[kind]: nn.Parameter(torch.tensor(math.log(settings.initial_entropy_coef)))
                for kind, is_there in kinds.items()
                if is_there and self.fixed_coef is None
            }
        )

    def coef(self, kind: str) -> torch.Tensor | float:
        """Returns the entropy coefficient of continuous or discrete actions, without a gradient."""
        return self.log_coefs[SAVED_NAMES[kind]].detach().exp() if self.fixed_coef is None else self.fixed_coef

    def loss(self, proposal: ActionSample, mask: torch.Tensor | None) -> torch.Tensor | float:
        """Returns the loss of automatic tuning: a coefficient grows while its entropy is below target."""
        total: torch.Tensor | float = 0.0
        if self.fixed_coef is None and proposal.log_prob is not None:
            excess = -proposal.log_prob.detach().mean() - self.target_continuous
            total = total + self.log_coefs[SAVED_NAMES["continuous"]] * excess
        if self.fixed_coef is None and proposal.discrete_log_probs is not None:
            excess = (discrete_entropy(proposal.discrete_log_probs.detach()) - self._discrete_target(mask)).mean()
            total = total + self.log_coefs[SAVED_NAMES["discrete"]] * excess
        return total

    def _discrete_target(self, mask: torch.Tensor | None) -> torch.Tensor | float:
        """Returns a fraction of the maximum entropy, which is lower where actions are masked out."""
        if mask is None:
            return self.target_discrete
        counts = torch.stack([part.sum(dim=1) for part in torch.split(mask, self.discrete_sizes, dim=1)])
        return self.fraction * counts.float().log().sum(dim=0)


def discrete_entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Returns the joint entropy [B] of independent discrete actions with concatenated log-probabilities."""
    return -(log_probs.exp() * log_probs).sum(dim=1)
