"""Minibatches from replay: a function of counters, even over what is remembered, whatever was drawn before."""

from __future__ import annotations

import numpy as np
import pytest

from quintain.algorithms.replay_draws import ReplayDraws
from quintain.core.rng import Rng


def test_draws_depend_on_the_counters_alone() -> None:
    """A resumed run begins in the middle of what was drawn at once."""
    whole, resumed = ReplayDraws(Rng(3), 8, 2), ReplayDraws(Rng(3), 8, 2)
    drawn = {
        (update, step): [x.copy() for x in whole.draw(update, step, 100)] for update in range(40) for step in range(2)
    }
    for update, step in [(37, 1), (5, 0), (37, 0), (16, 1)]:
        places, noise = resumed.draw(update, step, 100)
        np.testing.assert_array_equal(places, drawn[update, step][0])
        np.testing.assert_array_equal(noise, drawn[update, step][1])
    assert len({tuple(places.tolist()) for places, _ in drawn.values()}) == 80
    assert not np.array_equal(ReplayDraws(Rng(4), 8, 2).draw(5, 0, 100)[0], drawn[5, 0][0])


@pytest.mark.parametrize("num_remembered", [1, 10, 1_000_000])
def test_places_are_even_over_what_is_remembered(num_remembered: int) -> None:
    draws = ReplayDraws(Rng(0), 1000, 1)
    places = np.concatenate([draws.draw(update, 0, num_remembered)[0] for update in range(20)])
    assert places.dtype == np.int64
    assert places.min() >= 0
    assert places.max() < num_remembered
    counts, _ = np.histogram(places, bins=min(10, num_remembered), range=(0, num_remembered))
    # 20,000 places in 10 bins: 2000 in each, give or take five deviations of 42.
    assert np.abs(counts - 20_000 / len(counts)).max() < 215


def test_noise_is_standard_normal_and_not_repeated() -> None:
    draws = ReplayDraws(Rng(0), 500, 3)
    noise = np.stack([draws.draw(update, 0, 10)[1] for update in range(20)])
    assert noise.shape == (20, 2, 500, 3)
    assert noise.dtype == np.float32
    # 60,000 numbers: five deviations of the mean are 0.02, of the variance 0.03.
    assert abs(noise.mean()) < 0.02
    assert abs(noise.var() - 1.0) < 0.03
    assert len(np.unique(noise)) > 59_000


def test_large_minibatches_are_not_drawn_far_ahead() -> None:
    draws = ReplayDraws(Rng(0), 1 << 16, 0)
    assert draws.num_updates == 1
    assert draws.draw(3, 0, 10)[1].shape == (2, 1 << 16, 0)
