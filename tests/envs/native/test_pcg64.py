"""Compiled code draws numpy's random numbers from numpy's seeds, and computes what numpy's numbers compute."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from quintain.envs.native.lanes import draw, squared
from quintain.envs.native.pcg64 import fill_uniform


@numba.njit
def _fill(out: Any, seeds: Any) -> None:
    for i in range(len(seeds)):
        fill_uniform(out[i], seeds[i])


@numba.njit
def _draw(out: Any, seeds: Any) -> None:
    for i in range(len(seeds)):
        draw(out[i], seeds[i], -0.6, -0.4)


@numba.njit
def _square(out: Any, numbers: Any) -> None:
    for i in range(len(numbers)):
        out[i] = squared(numbers[i])


def _seeds() -> Any:
    edges = [0, 1, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
    return np.concatenate([edges, np.random.default_rng(5).integers(0, 2**32, 3000)])


def test_uniform_numbers_are_numpys() -> None:
    seeds = _seeds()
    drawn = np.empty((len(seeds), 9))
    _fill(drawn, seeds)
    expected = [np.random.Generator(np.random.PCG64(int(seed))).random(9) for seed in seeds]
    assert drawn.tobytes() == np.array(expected).tobytes()


def test_numbers_between_bounds_are_numpys() -> None:
    seeds = _seeds()
    drawn = np.empty((len(seeds), 4))
    _draw(drawn, seeds)
    expected = [np.random.default_rng(int(seed)).uniform(-0.6, -0.4, 4) for seed in seeds]
    assert drawn.tobytes() == np.array(expected).tobytes()


def test_squares_round_as_those_of_numpys_numbers() -> None:
    numbers = np.random.default_rng(0).uniform(-9.0, 9.0, 20_000)
    for dtype in (np.float64, np.float32):
        some = numbers.astype(dtype)
        found = np.empty_like(some)
        _square(found, some)
        assert found.tobytes() == np.array([number**2 for number in some]).tobytes()
        # Else the test could not tell a power from a product.
        assert (found != some * some).any()
