"""Environments and policies that break a collector; importable, so that its process can make them."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

from tests.envs.fragile import Walk


class Wrong(Walk):
    """Breaks its contract at a chosen step, counted over its life, in the way it is told."""

    def __init__(self, how: str, at: int = 40) -> None:
        super().__init__()
        self.how, self.at, self.num_steps = how, at, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        self.num_steps += 1
        if self.num_steps < self.at:
            return obs, reward, terminated, truncated, info
        if self.how == "nan":
            return np.full_like(obs, np.nan), reward, terminated, truncated, info
        if self.how == "raise":
            raise RuntimeError("the wheels came off")
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "hang":
            time.sleep(600)
        return obs, reward, terminated, truncated, info


class Unmade(Walk):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no licence")
