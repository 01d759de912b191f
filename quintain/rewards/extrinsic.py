"""The environment's reward, as it is or normalized."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.rewards.base import RewardSignal
from quintain.rewards.settings import ExtrinsicSettings

if TYPE_CHECKING:
    import torch

    from quintain.typing import Array

MIN_VARIANCE = 1e-8
"""Added to the variance of returns."""
FIRST_COUNT = 1e-4
"""Weight of the first guess, a variance of 1, among the returns that are seen."""


class Extrinsic(RewardSignal):
    """Returns the environment's reward unchanged."""

    sees_next_obs: ClassVar[bool] = False

    def evaluate(self, rollout: Rollout) -> Array:
        return rollout.array(f.REWARD)[:-1]


class NormalizedExtrinsic(Extrinsic):
    """Divides rewards by the running standard deviation of the discounted return (VecNormalize), and clips them.

    A return is the discounted sum of a lane's rewards since its episode began. The statistics take the returns of all
    lanes at a step, and then scale the rewards of that step. Ranks gather the returns of all lanes, so that their
    statistics are bitwise those of one rank. Replayed rewards are stored as they are and scaled when they are drawn, by
    the statistics of then: an early guess of the scale would stay in the buffer for long.
    """

    def __init__(self, settings: ExtrinsicSettings) -> None:
        super().__init__(settings)
        self.clip = settings.clip_reward
        self.count, self.mean, self.variance = FIRST_COUNT, 0.0, 1.0
        self.returns: Array = np.zeros(0)
        """The return of each lane of all ranks so far."""

    def evaluate(self, rollout: Rollout) -> Array:
        reward = super().evaluate(rollout)
        scales = self._take_in(reward, rollout.array(f.FIRST)[:-1], rollout.array(f.VALID)[:-1])
        if self.is_replayed:
            return reward
        scaled: Array = (reward * scales[:, None]).clip(-self.clip, self.clip)
        return scaled.astype(np.float32)

    def rescale(self, reward: torch.Tensor) -> torch.Tensor:
        # The strength was applied before the reward was stored, and is no reason to clip.
        clip = self.clip * abs(self.strength)
        return (reward * self._scale).clamp(-clip, clip)

    @property
    def _scale(self) -> float:
        return 1.0 / math.sqrt(max(self.variance, 0.0) + MIN_VARIANCE)

    def _take_in(self, reward: Array, first: Array, valid: Array) -> Array:
        """Adds the returns of a rollout's steps [T, N] to the statistics; returns the scale of each step [T]."""
        num_steps, num_lanes = reward.shape
        world = self.world
        if len(self.returns) != num_lanes * world.size:
            self.returns = np.zeros(num_lanes * world.size)
        now = self.returns[num_lanes * world.rank :][:num_lanes]
        found = np.zeros((num_steps, num_lanes))
        for t in range(num_steps):
            now = self.gamma * np.where(first[t], 0.0, now) + np.where(valid[t], reward[t], 0.0)
            found[t] = now
        counted = valid
        if world.size > 1:
            tables = np.array(world.gather([*found.ravel(), *valid.ravel().astype(np.float64)]))
            joined = tables.reshape(world.size, 2, num_steps, num_lanes).transpose(1, 2, 0, 3)
            found, counted = joined[0].reshape(num_steps, -1), joined[1].reshape(num_steps, -1) > 0.5
        self.returns = found[-1].copy()
        scales = np.zeros(num_steps)
        for t in range(num_steps):
            if (rows := found[t][counted[t]]).size:
                self._add(len(rows), float(rows.mean()), float(rows.var()))
            scales[t] = self._scale
        return scales

    def _add(self, num_rows: int, mean: float, variance: float) -> None:
        """Merges the moments of a step with those of all before (Chan et al. 1979)."""
        total = self.count + num_rows
        gap = mean - self.mean
        squares = self.variance * self.count + variance * num_rows + gap * gap * self.count * num_rows / total
        self.count, self.mean, self.variance = total, self.mean + gap * num_rows / total, squares / total


def extrinsic_for(settings: ExtrinsicSettings) -> Extrinsic:
    """Makes the signal of the settings."""
    return NormalizedExtrinsic(settings) if settings.normalize_reward else Extrinsic(settings)
