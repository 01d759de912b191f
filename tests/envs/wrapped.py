"""Environments and wrappers for tests of wrappers, masks and what environments say of ended episodes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Hop(gymnasium.Env[Any, Any]):
    """Hops to the right or stays; an episode ends at cell 3, which is a success, or after 5 steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, has_masks: bool = False) -> None:
        self.has_masks = has_masks

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = self.num_steps = 0
        return self._obs(), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.cell += int(action)
        self.num_steps += 1
        reached, late = self.cell == 3, self.num_steps == 5
        said = {"is_success": reached, "cell": self.cell, "name": "hop"} if reached or late else {"cell": -99}
        return self._obs(), 10.0 * int(action), reached, late and not reached, {**said, **self._info()}

    def _obs(self) -> Any:
        return np.array([self.cell], np.float32)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([True, False])} if self.has_masks else {}


class AddTo(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Adds a number to observations."""

    def __init__(self, env: Any, number: float = 1.0) -> None:
        super().__init__(env)
        self.number = number

    def observation(self, observation: Any) -> Any:
        return observation + np.float32(self.number)


class Double(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Doubles observations."""

    def observation(self, observation: Any) -> Any:
        return 2 * observation


class HalfReward(gymnasium.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return 0.5 * float(reward)
