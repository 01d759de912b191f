"""The built-in environment events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from quintain.envs.base import Env
    from quintain.typing import Array


def randomize_parameters(
    env: Env, lanes: Array | None, rng: np.random.Generator, ranges: dict[str, tuple[float, float]]
) -> None:
    """Draws each named environment parameter uniformly between its low and high, for each lane independently."""
    size = () if lanes is None else len(lanes)
    env.set_parameters({name: rng.uniform(low, high, size) for name, (low, high) in ranges.items()}, lanes)
