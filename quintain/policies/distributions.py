"""The distributions of policy heads: sampling from given noise, log-probabilities and entropies, nothing else.

A head maps the network's output to actions. Sampling is a pure function of the output and of random numbers that the
collector drew, which is what makes acting repeatable; there are no distribution objects to build in the loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import nn

from quintain.data.spec import BoxSpec, DiscreteSpec

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class NoiseSpec:
    """How many random numbers one action takes, and of which kind."""

    kind: Literal["uniform", "normal"]
    size: int


class Head(Protocol):
    """Turns `output [B, output_size]` of a network into actions."""

    output_size: int
    noise: NoiseSpec

    def sample(
        self, output: torch.Tensor, noise: torch.Tensor, action: torch.Tensor, log_prob: torch.Tensor
    ) -> None: ...
    def mode(self, output: torch.Tensor, action: torch.Tensor, log_prob: torch.Tensor) -> None: ...
    def evaluate(self, output: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


class CategoricalHead(nn.Module):
    """Chooses one of n actions with probabilities softmax(output)."""

    def __init__(self, spec: DiscreteSpec) -> None:
        super().__init__()
        self.output_size = spec.n
        self.noise = NoiseSpec("uniform", 1)

    def sample(self, output: torch.Tensor, noise: torch.Tensor, action: torch.Tensor, log_prob: torch.Tensor) -> None:
        """Inverts the cumulative distribution at noise [B, 1]; writes action [B] and its log-probability [B]."""
        log_probs = torch.log_softmax(output, dim=-1)
        below = log_probs.exp().cumsum(dim=-1) <= noise
        # Rounding may leave the last cumulative value below one: the last action takes what is left.
        torch.sum(below[:, :-1], dim=-1, out=action)
        log_prob.copy_(log_probs.gather(1, action.unsqueeze(1)).squeeze(1))

    def mode(self, output: torch.Tensor, action: torch.Tensor, log_prob: torch.Tensor) -> None:
        log_probs = torch.log_softmax(output, dim=-1)
        action.copy_(log_probs.argmax(dim=-1))
        log_prob.copy_(log_probs.gather(1, action.unsqueeze(1)).squeeze(1))

    def evaluate(self, output: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns log-probability [B] and entropy [B]."""
        log_probs = torch.log_softmax(output, dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        return log_probs.gather(1, action.unsqueeze(1)).squeeze(1), entropy


class GaussianHead(nn.Module):
    """Draws each number around the network's output with a spread that is learned but does not depend on the state."""

    def __init__(self, spec: BoxSpec, initial_log_std: float) -> None:
        super().__init__()
        self.output_size = spec.size
        self.noise = NoiseSpec("normal", spec.size)
        self.log_std = nn.Parameter(torch.full((spec.size,), initial_log_std))

    def sample(self, output: torch.Tensor, noise: torch.Tensor, action: torch.Tensor, log_prob: torch.Tensor) -> None:
        action.copy_((output + self.log_std.exp() * noise).view_as(action))
        log_prob.copy_((-0.5 * noise.square() - self.log_std - _HALF_LOG_2PI).sum(dim=-1))

    def mode(self, output: torch.Tensor, action: torch.Tensor, log_prob: torch.Tensor) -> None:
        action.copy_(output.view_as(action))
        log_prob.copy_((-self.log_std - _HALF_LOG_2PI).sum(dim=-1).expand_as(log_prob))

    def evaluate(self, output: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = (action.reshape(output.shape) - output) * (-self.log_std).exp()
        log_prob = (-0.5 * noise.square() - self.log_std - _HALF_LOG_2PI).sum(dim=-1)
        entropy = (self.log_std + (_HALF_LOG_2PI + 0.5)).sum().expand_as(log_prob)
        return log_prob, entropy
