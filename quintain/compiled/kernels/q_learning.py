"""The elementwise parts of a DQN or TD3 update between matrix products: one pass over the rows each.

`algorithms/dqn.py` and `algorithms/td3.py` say what the losses are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.kernels.activations import tanh
from quintain.compiled.runtime.kernel import fast_kernel

if TYPE_CHECKING:
    from quintain.typing import Array

_ZERO, _HALF, _ONE, _TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))

LOSS, Q_VALUE = range(2)
"""Indices of a step's metrics."""


@fast_kernel
def fit_values(
    values: Array,
    following: tuple[Array, Array],
    allowed: Array,
    taken: Array,
    worth: tuple[Array, Array],
    by_values: Array,
    report: Array,
) -> None:
    """Writes how DQN's Huber loss changes with the values [B, actions] of observations.

    `following` are the values of the next observations by which the best action is chosen, and those that count for
    it. `allowed` [B, actions], or [B, 0] without masks, are the actions that may be chosen there. `worth` is reward
    and discount [B].
    """
    choosing, counting = following
    num_rows, num_actions = values.shape
    share = _ONE / np.float32(num_rows)
    has_mask = allowed.shape[1] > 0
    loss = total = 0.0
    for r in range(num_rows):
        best = -1
        for k in range(num_actions):
            # A value that is not a number must be seen, as torch's argmax sees it.
            is_better = best < 0 or choosing[r, k] > choosing[r, best] or choosing[r, k] != choosing[r, k]
            if (not has_mask or allowed[r, k]) and is_better:
                best = k
            by_values[r, k] = _ZERO
        error = values[r, taken[r]] - (worth[0][r] + worth[1][r] * counting[r, best])
        size = abs(error)
        loss += _HALF * error * error if size < _ONE else size - _HALF
        by_values[r, taken[r]] = share * (error if size < _ONE else error / size)
        total += values[r, taken[r]]
    report[LOSS], report[Q_VALUE] = loss / num_rows, total / num_rows


@fast_kernel
def smooth_actions(outputs: Array, noise: Array, deviation: float, bound: float, rows: Array) -> None:
    """Writes TD3's target actions, with their clipped noise, to the last columns of rows."""
    num_rows, num_continuous = noise.shape
    first = rows.shape[1] - num_continuous
    for r in range(num_rows):
        for c in range(num_continuous):
            drawn = min(max(np.float32(deviation) * noise[r, c], -np.float32(bound)), np.float32(bound))
            rows[r, first + c] = min(max(tanh(outputs[r, c]) + drawn, -_ONE), _ONE)


@fast_kernel
def fit_twins(
    values: tuple[Array, Array],
    foreseen: tuple[Array, Array],
    worth: tuple[Array, Array],
    by_values: tuple[Array, Array],
    report: Array,
) -> None:
    """Writes how the squared errors of both critics change with their values [B, 1]; the lower target counts."""
    num_rows = len(worth[0])
    share = _TWO / np.float32(num_rows)
    loss = total = 0.0
    for r in range(num_rows):
        first, second = foreseen[0][r, 0], foreseen[1][r, 0]
        careful = second if second < first or second != second else first
        target = worth[0][r] + worth[1][r] * careful
        errors = values[0][r, 0] - target, values[1][r, 0] - target
        by_values[0][r, 0], by_values[1][r, 0] = share * errors[0], share * errors[1]
        loss += errors[0] * errors[0] + errors[1] * errors[1]
        total += values[0][r, 0] + values[1][r, 0]
    report[LOSS], report[Q_VALUE] = loss / num_rows, 0.5 * total / num_rows


@fast_kernel
def squash(outputs: Array, rows: Array) -> None:
    """Writes the actions of an actor's outputs [B, C] to the last columns of rows."""
    first = rows.shape[1] - outputs.shape[1]
    for r in range(len(outputs)):
        for c in range(outputs.shape[1]):
            rows[r, first + c] = tanh(outputs[r, c])


@fast_kernel
def pull_actions(rows: Array, by_actions: Array, by_outputs: Array) -> None:
    """Writes how a loss changes with an actor's outputs [B, C], given how it does with its actions."""
    first = rows.shape[1] - by_actions.shape[1]
    for r in range(len(rows)):
        for c in range(by_actions.shape[1]):
            by_outputs[r, c] = by_actions[r, c] * (_ONE - rows[r, first + c] * rows[r, first + c])
