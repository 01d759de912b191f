"""Reward signals of which a test knows every number."""

from __future__ import annotations

from typing import Any

import numpy as np

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.rewards.base import RewardSignal
from quintain.rewards.settings import RewardSignalSettings


class Surprise(RewardSignal):
    """Rewards unlikely actions, less with every batch, and goes on after ends; what it counts is its state."""

    settings_class = RewardSignalSettings
    ignores_ends = True

    def __init__(self, settings: RewardSignalSettings) -> None:
        super().__init__(settings)
        self.num_batches = 0

    def evaluate(self, rollout: Rollout) -> Any:
        self.num_batches += 1
        return -rollout.array(f.LOG_PROB)[:-1] / np.float32(self.num_batches)


class Given(RewardSignal):
    """Gives what it was told to, [T, N]."""

    def __init__(self, rewards: Any, *, ignores_ends: bool = False, **settings: float) -> None:
        super().__init__(RewardSignalSettings(**settings))
        self.rewards = np.array(rewards, np.float32)
        self.ignores_ends = ignores_ends

    def evaluate(self, rollout: Rollout) -> Any:
        return self.rewards
