"""A walk that stands still at a chosen step until a file appears; importable, for a collector's process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.envs.fragile import Walk


class Gated(Walk):
    """Waits before its `wait_at`-th step, counted over its life, until the file is there; says that it waits."""

    def __init__(self, gate: str, wait_at: int) -> None:
        super().__init__()
        self.gate, self.wait_at, self.num_steps = Path(gate), wait_at, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        if self.num_steps == self.wait_at:
            self.gate.with_suffix(".waiting").touch()
            wait_for(self.gate)
        return super().step(action)


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.002)
