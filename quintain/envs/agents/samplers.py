"""Distributions of environment parameters, drawn at the start of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from quintain.envs.settings import SamplerSettings
    from quintain.typing import Array


@dataclass(frozen=True)
class Sampler:
    """Draws parameter values; the caller passes the generator, so that draws are part of the caller's state.

    >>> Sampler("uniform", (2.0, 2.0)).draw(np.random.default_rng(0), 3).tolist()
    [2.0, 2.0, 2.0]
    """

    distribution: str
    numbers: tuple[float, ...]

    def draw(self, rng: np.random.Generator, size: int) -> Array:
        """Returns independent draws."""
        if self.distribution == "gaussian":
            mean, deviation = self.numbers
            return rng.normal(mean, deviation, size)
        lows, highs = np.array(self.numbers[::2]), np.array(self.numbers[1::2])
        if self.distribution == "uniform":
            return rng.uniform(lows[0], highs[0], size)
        # Of several ranges, a wide one is as much more likely as it is wider.
        widths = highs - lows
        shares = widths / widths.sum() if widths.sum() > 0 else np.full(len(widths), 1 / len(widths))
        chosen = rng.choice(len(lows), size, p=shares)
        drawn: Array = rng.uniform(lows[chosen], highs[chosen])
        return drawn


def sampler_of(settings: SamplerSettings) -> Sampler:
    return Sampler(settings.distribution, settings.numbers)


def sampler_from(given: Sampler | Mapping[str, Any]) -> Sampler:
    """Returns a sampler unchanged, or makes one from serialized fields."""
    if isinstance(given, Sampler):
        return given
    return Sampler(str(given["distribution"]), tuple(float(number) for number in given["numbers"]))
