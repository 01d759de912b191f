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

from quintain.world import Alone, World, joint_moments

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
        self.world: World = Alone()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("sum_of_squares", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return ((obs - self.shift) * self.scale).clamp(-self.clip, self.clip)

    def update(self, obs: Array) -> None:
        """Adds a batch [B, size] to the statistics (Chan et al. 1979) and publishes the new shift and scale.

        Ranks add the rows of all of them, so that they keep the same statistics.
        """
        num_rows, batch_mean, batch_squares = self._moments(obs.astype(np.float64))
        if num_rows == 0:
            return
        count, mean = float(self.count), self.mean.cpu().numpy()
        total = count + num_rows
        gap = batch_mean - mean
        new_mean = mean + gap * (num_rows / total)
        squares = self.sum_of_squares.cpu().numpy() + batch_squares + np.square(gap) * (count * num_rows / total)
        self.count.fill_(total)
        self.mean.copy_(torch.from_numpy(new_mean))
        self.sum_of_squares.copy_(torch.from_numpy(squares))
        self.shift.copy_(torch.from_numpy(new_mean))
        self.scale.copy_(torch.from_numpy(1.0 / np.sqrt(squares / total + 1e-8)))

    def _moments(self, rows: Array) -> tuple[float, Array, Array]:
        """Returns the number, the means and the sums of squared deviations of a batch's rows, over all ranks."""
        nothing = np.zeros(rows.shape[1:])
        mean = rows.mean(axis=0) if len(rows) else nothing
        squares = np.square(rows - mean).sum(axis=0) if len(rows) else nothing
        if self.world.size == 1:
            return len(rows), mean, squares
        return joint_moments(self.world, len(rows), mean, squares)
