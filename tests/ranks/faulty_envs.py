"""Environments that fail where only one rank sees it."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv


class BreaksOnOneRank(CartPoleEnv):
    """Raises after 40 steps, on a rank that rank 0 started."""

    def __init__(self) -> None:
        super().__init__()
        self.num_steps_taken = 0

    def step(self, action: Any) -> Any:
        self.num_steps_taken += 1
        if self.num_steps_taken == 40 and _is_started_rank():
            raise RuntimeError("the gripper is stuck")
        return super().step(action)


class NanOnOneRank(BreaksOnOneRank):
    """Observes nothing but NaN after 40 steps, on a rank that rank 0 started."""

    def step(self, action: Any) -> Any:
        self.num_steps_taken += 1
        obs, *rest = CartPoleEnv.step(self, action)
        if self.num_steps_taken >= 40 and _is_started_rank():
            obs = np.full_like(obs, np.nan)
        return (obs, *rest)


class DiesOnOneRank(BreaksOnOneRank):
    """Takes its process with it after 40 steps, on a rank that rank 0 started."""

    def step(self, action: Any) -> Any:
        self.num_steps_taken += 1
        if self.num_steps_taken == 40 and _is_started_rank():
            os._exit(7)
        return CartPoleEnv.step(self, action)


class SucceedsOnRankZero(CartPoleEnv):
    """Reaches its goal within eight steps, but for ranks that rank 0 started."""

    def reset(self, **options: Any) -> Any:
        self.age = 0
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.age += 1
        obs, reward, *_ = super().step(action)
        return obs, reward, self.age == 8, False, {"is_success": not _is_started_rank()}


class CannotBeMadeTwice(CartPoleEnv):
    """Is refused by its maker on a rank that rank 0 started."""

    def __init__(self) -> None:
        super().__init__()
        if _is_started_rank():
            raise OSError("the camera is in use")


def _is_started_rank() -> bool:
    return multiprocessing.parent_process() is not None
