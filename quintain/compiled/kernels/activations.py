"""Activations and their slopes, all made from one cheap tanh that compilers vectorize."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.kernels.tables import ELU, RELU, TANH
from quintain.compiled.runtime.kernel import fast_part

if TYPE_CHECKING:
    from quintain.compiled.kernels.tables import Float
    from quintain.typing import Array

_HALF, _ONE, _TWO = np.float32(0.5), np.float32(1.0), np.float32(2.0)
_FLAT_FROM = np.float32(8.0)
"""Input from which float32 tanh is constant: 1 - tanh(8) is 2e-7."""


def _continued_fraction(depth: int) -> tuple[list[np.float32], list[np.float32]]:
    """Returns P and Q of tanh(x) = x P(x^2) / Q(x^2) from Lambert's x / (1 + x^2 / (3 + x^2 / (5 + ...)))."""
    above, below = [Fraction(1)], [Fraction(2 * depth - 1)]
    for odd in range(2 * depth - 3, 0, -2):
        deeper = [Fraction(0), *above]
        above, below = below, [odd * c for c in below] + [Fraction(0)] * (len(deeper) - len(below))
        below = [b + (deeper[i] if i < len(deeper) else 0) for i, b in enumerate(below)]
    first = above[0]
    return [np.float32(float(c / first)) for c in above], [np.float32(float(c / first)) for c in below]


# Thirteen levels: within 4e-7 everywhere, of which rounding is the larger part.
(_P0, _P1, _P2, _P3, _P4, _P5, _P6), (_Q0, _Q1, _Q2, _Q3, _Q4, _Q5, _Q6) = _continued_fraction(13)


@fast_part
def tanh(x: Float) -> Float:
    """Returns tanh(x) to within 1e-6, and NaN for NaN."""
    # In this order NaN passes both comparisons.
    z = _FLAT_FROM if x > _FLAT_FROM else x
    z = -_FLAT_FROM if x < -_FLAT_FROM else z
    y = z * z
    above = _P0 + y * (_P1 + y * (_P2 + y * (_P3 + y * (_P4 + y * (_P5 + y * _P6)))))
    below = _Q0 + y * (_Q1 + y * (_Q2 + y * (_Q3 + y * (_Q4 + y * (_Q5 + y * _Q6)))))
    return z * above / below


@fast_part
def activate(activation: int, values: Array, slopes: Array) -> None:
    """Replaces `values` by the activation's outputs and writes its derivatives to `slopes`; both [units, rows]."""
    num_units, num_rows = values.shape
    for unit in range(num_units):
        if activation == TANH:
            for r in range(num_rows):
                h = tanh(values[unit, r])
                values[unit, r], slopes[unit, r] = h, _ONE - h * h
        elif activation == RELU:
            for r in range(num_rows):
                slope = _ONE if values[unit, r] > 0 else np.float32(0.0)
                values[unit, r], slopes[unit, r] = values[unit, r] * slope, slope
        elif activation == ELU:
            for r in range(num_rows):
                # exp(x) - 1 = 2 t / (1 - t) with t = tanh(x / 2), which loses no digits for x < 0.
                x = values[unit, r]
                t = tanh(_HALF * (np.float32(0.0) if x > 0 else x))
                h = _TWO * t / (_ONE - t)
                slopes[unit, r] = h + _ONE
                values[unit, r] = x if x > 0 else h
        else:
            for r in range(num_rows):
                # silu(x) = x sigmoid(x), and sigmoid(x) = (1 + tanh(x / 2)) / 2.
                x = values[unit, r]
                sigmoid = _HALF + _HALF * tanh(_HALF * x)
                values[unit, r] = x * sigmoid
                slopes[unit, r] = sigmoid * (_ONE + x * (_ONE - sigmoid))
