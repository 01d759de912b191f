"""An environment for sweeps that a test kills: it stands still after some steps until a file says that it may go on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium

FREE_STEPS = 40


class Gated(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that waits for `gate/open` after its first steps, and raises if it is told to."""

    def __init__(self, gate: str, fails: bool = False) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.gate = Path(gate)
        self.fails = fails
        self.num_steps = 0

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        if self.fails and self.num_steps > FREE_STEPS // 2:
            raise ValueError("this combination breaks")
        while self.num_steps > FREE_STEPS and not (self.gate / "open").exists():
            (self.gate / f"held-{os.getpid()}").touch()
            time.sleep(0.01)
        return super().step(action)
