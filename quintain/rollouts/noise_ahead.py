"""Draws noise for many steps at once, for short rollouts: it takes as long as for one step.

Noise is a function of lane and step, so that results are unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.policies.base import draw_noise, fill_noise
from quintain.policies.heads import NoiseSpec

if TYPE_CHECKING:
    from quintain.typing import Array

_NUM_AHEAD = 32


class NoiseAhead:
    """Fills the noise of successive rollouts; noise drawn in advance is no state."""

    def __init__(self, noise: NoiseSpec, rng: Rng) -> None:
        self.noise = noise
        self.rng = rng
        self.drawn: Array = np.zeros((0, 0, noise.size), np.float32)
        self.place = (0, 0)
        """The first lane step and lane of the drawn noise."""

    def fill(self, rollout: Rollout, first_step: int, first_lane: int) -> None:
        """Fills the noise of a rollout whose lanes are at `first_step`."""
        num_slots = rollout.num_steps + 1
        if not rollout.arrays or 2 * num_slots > _NUM_AHEAD:
            draw_noise(rollout, self.noise, self.rng, first_step=first_step, first_lane=first_lane)
            return
        start = first_step - self.place[0]
        is_there = 0 <= start <= len(self.drawn) - num_slots
        if not is_there or self.place[1] != first_lane or self.drawn.shape[1] != rollout.num_lanes:
            self.drawn = np.zeros((_NUM_AHEAD, rollout.num_lanes, self.noise.size), np.float32)
            fill_noise(self.drawn, self.noise, self.rng, first_step, first_lane)
            self.place, start = (first_step, first_lane), 0
        np.copyto(rollout.arrays[f.NOISE], self.drawn[start : start + num_slots])
