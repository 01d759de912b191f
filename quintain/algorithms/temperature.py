"""The price of being predictable: how much entropy counts beside reward, fixed or adapted to a target."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from quintain.algorithms.settings import SACSettings
from quintain.policies.soft_actor import Proposal


class Temperature(nn.Module):
    """Weighs the entropy of numbers and of choices, each against a target of its own (Haarnoja et al. 2018, eq. 18)."""

    def __init__(self, settings: SACSettings, num_numbers: int, choice_sizes: Sequence[int]) -> None:
        super().__init__()
        self.fixed_coef = settings.entropy_coef
        self.choice_sizes = list(choice_sizes)
        self.fraction = settings.target_entropy_fraction
        self.target_of_numbers = -float(num_numbers) if settings.target_entropy is None else settings.target_entropy
        self.target_of_choices = self.fraction * sum(math.log(n) for n in choice_sizes)
        kinds = {"numbers": num_numbers > 0, "choices": bool(choice_sizes)}
        self.log_coefs = nn.ParameterDict(
            {
                kind: nn.Parameter(torch.tensor(math.log(settings.initial_entropy_coef)))
                for kind, is_there in kinds.items()
                if is_there and self.fixed_coef is None
            }
        )

    def coef(self, kind: str) -> torch.Tensor | float:
        """Returns the weight of the entropy of numbers or choices, without a gradient."""
        return self.log_coefs[kind].detach().exp() if self.fixed_coef is None else self.fixed_coef

    def loss(self, proposal: Proposal, mask: torch.Tensor | None) -> torch.Tensor | float:
        """Returns what falls when a weight grows while its entropy is below target, and shrinks while above."""
        total: torch.Tensor | float = 0.0
        if self.fixed_coef is None and proposal.log_prob is not None:
            excess = -proposal.log_prob.detach().mean() - self.target_of_numbers
            total = total + self.log_coefs["numbers"] * excess
        if self.fixed_coef is None and proposal.choice_log_probs is not None:
            excess = (entropy_of_choices(proposal.choice_log_probs.detach()) - self._target_of_choices(mask)).mean()
            total = total + self.log_coefs["choices"] * excess
        return total

    def _target_of_choices(self, mask: torch.Tensor | None) -> torch.Tensor | float:
        """Returns a part of the largest entropy possible, which is less where choices are forbidden."""
        if mask is None:
            return self.target_of_choices
        counts = torch.stack([part.sum(dim=1) for part in torch.split(mask, self.choice_sizes, dim=1)])
        return self.fraction * counts.float().log().sum(dim=0)


def entropy_of_choices(log_probs: torch.Tensor) -> torch.Tensor:
    """Returns the joint entropy [B] of independent choices whose log-probabilities stand side by side."""
    return -(log_probs.exp() * log_probs).sum(dim=1)
