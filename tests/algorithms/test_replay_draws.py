"""Minibatches from replay: a function of counters, even over what is remembered, whatever was drawn before."""

from __future__ import annotations

import numpy as np
import pytest

from quintain.algorithms.replay_draws import ReplayDraws
from quintain.core.rng import Rng
from quintain.policies.heads import NoiseSpec


def normal(count: int) -> tuple[NoiseSpec, NoiseSpec]:
    return NoiseSpec(num_normal=count), NoiseSpec(num_normal=count)


def test_draws_depend_on_the_counters_alone() -> None:
    """A resumed run begins in the middle of what was drawn at once."""
    whole, resumed = ReplayDraws(Rng(3), 8, normal(2)), ReplayDraws(Rng(3), 8, normal(2))
    drawn = {
        (update, step): [np.copy(x) for x in whole.draw(update, step, 100)] for update in range(40) for step in range(2)
    }
    for update, step in [(37, 1), (5, 0), (37, 0), (16, 1)]:
        places, noise = resumed.draw(update, step, 100)
        np.testing.assert_array_equal(places, drawn[update, step][0])
        np.testing.assert_array_equal(noise, drawn[update, step][1])
    assert len({tuple(places.tolist()) for places, _ in drawn.values()}) == 80
    assert not np.array_equal(ReplayDraws(Rng(4), 8, normal(2)).draw(5, 0, 100)[0], drawn[5, 0][0])


@pytest.mark.parametrize("num_remembered", [1, 10, 1_000_000])
def test_places_are_even_over_what_is_remembered(num_remembered: int) -> None:
    draws = ReplayDraws(Rng(0), 1000, normal(1))
    places = np.concatenate([draws.draw(update, 0, num_remembered)[0] for update in range(20)])
    assert places.dtype == np.int64
    assert places.min() >= 0
    assert places.max() < num_remembered
    counts, _ = np.histogram(places, bins=min(10, num_remembered), range=(0, num_remembered))
    # 20,000 places in 10 bins: 2000 in each, give or take five deviations of 42.
    assert np.abs(counts - 20_000 / len(counts)).max() < 215


def test_noise_is_standard_normal_and_not_repeated() -> None:
    draws = ReplayDraws(Rng(0), 500, normal(3))
    noise = np.stack([draws.draw(update, 0, 10)[1] for update in range(20)])
    assert noise.shape == (20, 2, 500, 3)
    assert noise.dtype == np.float32
    # 60,000 numbers: five deviations of the mean are 0.02, of the variance 0.03.
    assert abs(noise.mean()) < 0.02
    assert abs(noise.var() - 1.0) < 0.03
    assert len(np.unique(noise)) > 59_000


def test_large_minibatches_are_not_drawn_far_ahead() -> None:
    draws = ReplayDraws(Rng(0), 1 << 16, normal(0))
    assert draws.num_updates == 1
    assert [part.shape for part in draws.draw(3, 0, 10)[1]] == [(1 << 16, 0)] * 2


def test_noise_of_now_and_next_is_as_declared_and_goes_on_as_before() -> None:
    """The normal numbers of two equal actions are one draw, as they were before there were other kinds."""
    draw = Rng(5).generator("replay", 0, 0)
    expected = draw.standard_normal((16, 2, 8, 3), dtype="float32")
    places = draw.random((16, 8))
    drawn, (now, following) = ReplayDraws(Rng(5), 8, normal(3)).draw(2, 0, 100)
    np.testing.assert_array_equal(drawn, (places[2] * 100).astype(np.int64))
    np.testing.assert_array_equal(np.stack((now, following)), expected[2])

    mixed = ReplayDraws(Rng(5), 2000, (NoiseSpec(num_uniform=2), NoiseSpec(1, 1)))
    _, (now, following) = mixed.draw(0, 0, 100)
    assert now.shape == following.shape == (2000, 2)
    uniform = np.concatenate((now, following[:, :1]), axis=1)
    assert 0.0 <= uniform.min() < 0.01
    assert 0.99 < uniform.max() < 1.0
    assert len(np.unique(uniform)) > 5900
    assert abs(following[:, 1].std() - 1.0) < 0.1
