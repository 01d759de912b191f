"""Clipping and Adam over flat parameters in one pass; the formulas are those of torch's Adam (Kingma and Ba 2015)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quintain.compiled.runtime.kernel import fast_kernel

if TYPE_CHECKING:
    from quintain.typing import Array

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_SMALLEST = np.finfo(np.float32).tiny


class Rates(NamedTuple):
    """Hyperparameters of a step."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    max_grad_norm: float
    """Infinite for no clipping."""


@fast_kernel
def step_adam(flat: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, num_steps: Array, rates: Rates) -> float:
    """Clips the gradient norm, takes an Adam step, and returns the norm before clipping.

    `num_steps [1]` counts the steps taken; a gradient that is not finite changes nothing. First moments below the
    smallest normal float32 are 0: those of weights whose gradient stays 0, such as inputs of a dead ReLU, would fade
    into subnormal numbers, with which a processor calculates ten times slower.
    """
    squares = 0.0
    for i in range(len(grad)):
        squares += grad[i] * grad[i]
    norm = np.sqrt(squares)
    if not np.isfinite(norm):
        return float(norm)
    num_steps[0] += _ONE
    scale = np.float32(min(1.0, rates.max_grad_norm / (norm + 1e-6)))
    size = np.float32(rates.learning_rate / (1.0 - rates.beta1 ** num_steps[0]))
    root = np.float32(np.sqrt(1.0 - rates.beta2 ** num_steps[0]))
    keep1, keep2, eps = np.float32(rates.beta1), np.float32(rates.beta2), np.float32(rates.eps)
    add1, add2 = np.float32(1.0 - rates.beta1), np.float32(1.0 - rates.beta2)
    for i in range(len(flat)):
        grad[i] *= scale
        exp_avg[i] = keep1 * exp_avg[i] + add1 * grad[i]
        exp_avg_sq[i] = keep2 * exp_avg_sq[i] + add2 * grad[i] * grad[i]
        flat[i] -= size * exp_avg[i] / (np.sqrt(exp_avg_sq[i]) / root + eps)
    # A loop of its own: inside the one above it would change how that is compiled, and with it the last bits.
    for i in range(len(flat)):
        if abs(exp_avg[i]) < _SMALLEST:
            exp_avg[i] = _ZERO
    return float(norm)
