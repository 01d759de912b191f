"""The environment events that ship."""

from __future__ import annotations

from typing import Any

import numpy as np


def randomize_parameters(
    env: Any, lanes: Any, rng: np.random.Generator, ranges: dict[str, tuple[float, float]]
) -> None:
    """Draws each named parameter of the environment anew between its low and its high, for each lane by itself."""
    size = () if lanes is None else len(lanes)
    env.set_parameters({name: rng.uniform(low, high, size) for name, (low, high) in ranges.items()}, lanes)
