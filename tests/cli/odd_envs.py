"""Environments that a run cannot use, or that fail while it uses them."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, Sequence

VECTOR = Box(-1.0, 1.0, (2,), np.float32)


class Plain(gymnasium.Env[Any, Any]):
    """Ends after ten steps, each of reward 1."""

    observation_space: Any = VECTOR
    action_space: Any = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return self.obs(), self.reward(), self.age == 10, False, {}

    def obs(self) -> Any:
        return np.full(2, self.age / 10, np.float32)

    def reward(self) -> float:
        return 1.0


class SequenceObs(Plain):
    observation_space = Sequence(VECTOR)


class WholeNumbers(Plain):
    action_space = Box(0, 5, (2,), np.int64)


class WrongMask(Plain):
    def action_masks(self) -> Any:
        return [True, True, False]


class NothingAllowed(Plain):
    def action_masks(self) -> Any:
        return [False, False]


class Wanders(Plain):
    """Changes the directory of its process when it is made, and at every step."""

    def __init__(self) -> None:
        os.chdir("..")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        os.chdir("..")
        return super().step(action)


class CannotBeMade(Plain):
    def __init__(self) -> None:
        raise RuntimeError("no licence\nsecond line of the reason")


class FailsInReset(Plain):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        raise OSError("the simulator is gone")


class FailsLater(Plain):
    """Fails at its 100th step unless told otherwise."""

    num_steps = 0
    is_mended = False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        type(self).num_steps += 1
        if type(self).num_steps >= 100 and not self.is_mended:
            raise ValueError("the gripper fell off")
        return super().step(action)


class NotANumber(Plain):
    def obs(self) -> Any:
        return np.array([np.nan if self.age == 5 else 0.0, 0.0], np.float32)


class Infinite(Plain):
    def reward(self) -> float:
        return float("inf") if self.age == 5 else 1.0


class WrongShape(Plain):
    def obs(self) -> Any:
        return np.zeros(3, np.float32)


class NotAnEnv:
    """Has nothing of an environment."""


class Endless(Plain):
    """Has no end."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age = (self.age + 1) % 10
        return self.obs(), self.reward(), False, False, {}


class BreaksNowAndThen(Plain):
    """Raises in every 20th step of all that were ever taken in this process."""

    num_steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        BreaksNowAndThen.num_steps += 1
        if BreaksNowAndThen.num_steps % 20 == 0:
            raise RuntimeError("the gripper slipped")
        return super().step(action)
