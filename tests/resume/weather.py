"""Environment events for runs that are killed: one draws, one remembers and is told of starts; importable by name."""

from __future__ import annotations

from typing import Any

import numpy as np


def breeze(env: Any, lanes: Any, rng: np.random.Generator, strength: float = 0.05) -> None:
    """Blows from now on, in each lane as hard as it is drawn."""
    env.set_parameters({"wind": strength * rng.normal(size=len(lanes))}, lanes)


class Storm:
    """Blows harder with each call in a lane's episode, which it has to remember."""

    def __init__(self, cfg: Any, env: Any) -> None:
        self.force = np.zeros(env.num_lanes)

    def __call__(self, env: Any, lanes: Any, growth: float = 0.01) -> None:
        self.force[lanes] += growth
        env.set_parameters({"wind": self.force[lanes]}, lanes)

    def reset(self, lanes: Any) -> None:
        self.force[lanes] = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"force": self.force.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.force = np.array(state["force"])
