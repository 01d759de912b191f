"""Running mean and variance of observations, part of the policy: it is saved, exported and evaluated with it.

The statistics are kept in float64 and change only when the learner says so, once per cycle after the update. What
acting and learning see in between is a frozen float32 copy, so a rollout is replayed with the numbers it was collected
with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from quintain.typing import Array


class ObsNormalizer(nn.Module):
    """Maps observations to (obs - mean) / std, clipped."""

    count: torch.Tensor
    mean: torch.Tensor
    sum_of_squares: torch.Tensor
    shift: torch.Tensor
    scale: torch.Tensor

    def __init__(self, size: int, clip: float) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("sum_of_squares", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return ((obs - self.shift) * self.scale).clamp(-self.clip, self.clip)

    def update(self, obs: Array) -> None:
        """Adds a batch [B, size] to the statistics (Chan et al. 1979) and publishes the new shift and scale."""
        if len(obs) == 0:
            return
        rows = obs.astype(np.float64)
        count, mean = float(self.count), self.mean.cpu().numpy()
        batch_mean = rows.mean(axis=0)
        batch_squares = np.square(rows - batch_mean).sum(axis=0)
        total = count + len(rows)
        gap = batch_mean - mean
        new_mean = mean + gap * (len(rows) / total)
        squares = self.sum_of_squares.cpu().numpy() + batch_squares + np.square(gap) * (count * len(rows) / total)
        self.count.fill_(total)
        self.mean.copy_(torch.from_numpy(new_mean))
        self.sum_of_squares.copy_(torch.from_numpy(squares))
        self.shift.copy_(torch.from_numpy(new_mean))
        self.scale.copy_(torch.from_numpy(1.0 / np.sqrt(squares / total + 1e-8)))
