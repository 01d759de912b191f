"""Noise that was drawn ahead is the noise that each rollout would have drawn itself."""

from __future__ import annotations

import numpy as np
import pytest

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.policies.base import draw_noise
from quintain.policies.heads import NoiseSpec
from quintain.rollouts.noise_ahead import NoiseAhead
from tests.declared import declared

NOISE = NoiseSpec(num_uniform=1, num_normal=3)
SPEC = BehaviorSpec(box(2), discrete(2))


def block(num_steps: int, num_lanes: int = 2) -> Rollout:
    return Rollout(SPEC, num_lanes=num_lanes, num_steps=num_steps, fields=declared(NOISE.size))


@pytest.mark.parametrize("num_steps", [1, 3, 15, 16, 100])
def test_rollouts_in_a_row_get_what_they_would_draw(num_steps: int) -> None:
    ahead, rollout, expected = NoiseAhead(NOISE, Rng(1)), block(num_steps), block(num_steps)
    for first_step in range(7, 7 + 70 * num_steps, num_steps):
        ahead.fill(rollout, first_step, first_lane=5)
        draw_noise(expected, NOISE, Rng(1), first_step=first_step, first_lane=5)
        np.testing.assert_array_equal(rollout.arrays[f.NOISE], expected.arrays[f.NOISE])


def test_jumps_other_lanes_and_other_blocks_are_noticed() -> None:
    ahead = NoiseAhead(NOISE, Rng(1))
    for first_step, first_lane, num_lanes in ((0, 0, 2), (9, 0, 2), (3, 0, 2), (4, 1, 2), (4, 1, 3), (900, 1, 3)):
        rollout, expected = block(2, num_lanes), block(2, num_lanes)
        ahead.fill(rollout, first_step, first_lane)
        draw_noise(expected, NOISE, Rng(1), first_step=first_step, first_lane=first_lane)
        np.testing.assert_array_equal(rollout.arrays[f.NOISE], expected.arrays[f.NOISE])


def test_few_steps_are_drawn_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, ...]] = []
    fill = Rng.fill_uniform
    monkeypatch.setattr(Rng, "fill_uniform", lambda self, out, *rest: (drawn.append(out.shape), fill(self, out, *rest)))
    ahead, rollout = NoiseAhead(NOISE, Rng(1)), block(1)
    for first_step in range(62):
        ahead.fill(rollout, first_step, 0)
    assert drawn == [(32, 2, 1)] * 2
