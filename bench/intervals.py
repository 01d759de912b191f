"""Compares the scores of two sides over seeds: interquartile mean, bootstrap interval, permutation test.

The interquartile mean and its bootstrap interval are those of Agarwal et al. (2021), "Deep reinforcement learning at
the edge of the statistical precipice", for one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
SIGNIFICANT = 0.05
NUM_RESAMPLES = 10_000
SEED = 0
"""Of the resamples, so that a page that is written again says the same."""

Scores = NDArray[np.float64]


def interquartile_mean(scores: Sequence[float]) -> float:
    """Returns the mean without the lowest and the highest quarter, each rounded down to whole scores."""
    return float(_interquartile_means(np.asarray(scores, np.float64)))


def bootstrap_interval(scores: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % percentile interval of the interquartile mean over resampled seeds."""
    values = np.asarray(scores, np.float64)
    drawn = np.random.default_rng(SEED).integers(0, len(values), (NUM_RESAMPLES, len(values)))
    tail = (1.0 - LEVEL) / 2
    low, high = np.quantile(_interquartile_means(values[drawn]), (tail, 1.0 - tail))
    return float(low), float(high)


def bootstrap_median(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % percentile interval of the median over resampled rounds."""
    rows = np.asarray(values, np.float64)
    drawn = np.random.default_rng(SEED).integers(0, len(rows), (NUM_RESAMPLES, len(rows)))
    tail = (1.0 - LEVEL) / 2
    low, high = np.quantile(np.median(rows[drawn], axis=1), (tail, 1.0 - tail))
    return float(low), float(high)


def chance_of_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns how often scores dealt at random to the two sides differ at least as much, by interquartile means.

    An exact two-sided permutation test: every deal is counted.
    """
    scores = np.asarray([*ours, *theirs], np.float64)
    hands = np.array(list(combinations(range(len(scores)), len(ours))))
    is_ours = np.zeros((len(hands), len(scores)), bool)
    np.put_along_axis(is_ours, hands, True, axis=1)
    everybody = np.broadcast_to(scores, is_ours.shape)
    mine = everybody[is_ours].reshape(len(hands), len(ours))
    others = everybody[~is_ours].reshape(len(hands), len(theirs))
    deals = np.abs(_interquartile_means(mine) - _interquartile_means(others))
    # Sums in another order differ by rounding; the deal that was made must count itself.
    difference = abs(interquartile_mean(ours) - interquartile_mean(theirs))
    return float(np.mean(deals >= difference - 1e-9 * max(1.0, float(np.abs(scores).max()))))


def smallest_chance(num_seeds: int) -> float:
    """Returns a lower bound of `chance_of_difference`: the deal that was made and its mirror image always count."""
    return 2 / comb(2 * num_seeds, num_seeds)


def _interquartile_means(rows: Scores) -> Scores:
    """Returns the interquartile mean along the last axis."""
    cut = rows.shape[-1] // 4
    middle: Scores = np.sort(rows, axis=-1)[..., cut : rows.shape[-1] - cut].mean(axis=-1)
    return middle
