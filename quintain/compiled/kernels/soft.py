"""Element-wise parts of a SAC step between the large products: one pass per row, not many tensor operations.

`algorithms/sac.py` defines the loss, and `policies/heads.py` the squashed Gaussian. Continuous actions are in [-1, 1];
rows of the actor's buffers are the minibatch's observations and then its next observations.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quintain.compiled.kernels.activations import tanh
from quintain.compiled.kernels.heads import HALF_LOG_2PI, HIGHEST_LOG_STD, LOWEST_LOG_STD, log_slope
from quintain.compiled.runtime.kernel import fast_kernel, fast_part

if TYPE_CHECKING:
    from quintain.compiled.kernels.tables import Float
    from quintain.typing import Array

_ZERO, _HALF, _ONE, _TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))

CRITIC_LOSS, Q_VALUE, POLICY_LOSS, ENTROPY = range(4)
"""Indices of a step's metrics."""


class Rows(NamedTuple):
    """Buffers of a minibatch of B rows; F features, C continuous actions."""

    seen: Array
    """[2 B, features of the actor]"""
    taken: Array
    """[B, F + C], features and the actions taken."""
    proposed: Array
    """[B, F + C], features and the actions sampled from the current policy."""
    next_proposed: Array
    """[B, F + C], features of next observations and actions sampled there."""
    drawn: Array
    """[2 B, C], sampled actions before squashing."""
    log_prob: Array
    """[2 B], log-probabilities of sampled actions."""


@fast_kernel
def lay_out(actor_sees: tuple[Array, Array], critics_see: tuple[Array, Array], done: Array, rows: Rows) -> None:
    """Copies features of observations and next observations, and the actions taken [B, C], to the networks' inputs."""
    num_rows, num_features = critics_see[0].shape
    for r in range(num_rows):
        for k in range(rows.seen.shape[1]):
            rows.seen[r, k] = actor_sees[0][r, k]
            rows.seen[num_rows + r, k] = actor_sees[1][r, k]
        for k in range(num_features):
            rows.taken[r, k] = rows.proposed[r, k] = critics_see[0][r, k]
            rows.next_proposed[r, k] = critics_see[1][r, k]
        for k in range(done.shape[1]):
            rows.taken[r, num_features + k] = tanh(done[r, k])


@fast_kernel
def propose(outputs: Array, noise: tuple[Array, Array], initial_log_std: float, rows: Rows) -> None:
    """Samples continuous actions from the actor's outputs [2 B, 2 C]: means, then unbounded log-deviations."""
    num_rows, num_continuous = noise[0].shape
    first = rows.proposed.shape[1] - num_continuous
    # One loop for now and next, so that it is compiled once.
    for half in range(2):
        drawing, place = noise[0] if half == 0 else noise[1], rows.proposed if half == 0 else rows.next_proposed
        for r in range(num_rows):
            row, log_prob = half * num_rows + r, _ZERO
            for c in range(num_continuous):
                log_std = min(
                    max(outputs[row, num_continuous + c] + np.float32(initial_log_std), LOWEST_LOG_STD), HIGHEST_LOG_STD
                )
                number = outputs[row, c] + exp(log_std) * drawing[r, c]
                rows.drawn[row, c] = number
                place[r, first + c] = tanh(number)
                log_prob += -_HALF * drawing[r, c] * drawing[r, c] - log_std - HALF_LOG_2PI - log_slope(number)
            rows.log_prob[row] = log_prob


@fast_kernel
def judge_values(
    values: tuple[Array, Array],
    foreseen: tuple[Array, Array],
    worth: tuple[Array, Array],
    coef: float,
    rows: Rows,
    by_values: tuple[Array, Array],
    report: Array,
) -> None:
    """Writes the derivatives of the squared errors by both critics' values [B, 1], given the bootstrap values.

    `worth` is reward and discount [B] of each row.
    """
    num_rows = len(rows.taken)
    share = _ONE / np.float32(num_rows)
    loss = total = 0.0
    for r in range(num_rows):
        careful = _lower(foreseen[0][r, 0], foreseen[1][r, 0])
        target = worth[0][r] + worth[1][r] * (careful - np.float32(coef) * rows.log_prob[num_rows + r])
        first, second = values[0][r, 0] - target, values[1][r, 0] - target
        by_values[0][r, 0], by_values[1][r, 0] = share * first, share * second
        loss += first * first + second * second
        total += values[0][r, 0] + values[1][r, 0]
    report[CRITIC_LOSS], report[Q_VALUE] = 0.5 * loss / num_rows, 0.5 * total / num_rows


@fast_kernel
def choose_critic(values: tuple[Array, Array], by_values: tuple[Array, Array], report: Array) -> None:
    """Writes the derivatives of the policy loss by both critics' values [B, 1]: only the lower one counts."""
    num_rows = len(values[0])
    share = _ONE / np.float32(num_rows)
    total: Float = 0.0
    for r in range(num_rows):
        first, second = values[0][r, 0], values[1][r, 0]
        # Where both say the same, each counts half.
        is_first = _ONE if first < second else (_HALF if first == second else _ZERO)
        by_values[0][r, 0], by_values[1][r, 0] = -share * is_first, -share * (_ONE - is_first)
        total += _lower(first, second)
    report[POLICY_LOSS] = -total / num_rows


@fast_kernel
def judge_actions(
    outputs: Array, by_numbers: Array, initial_log_std: float, coef: float, rows: Rows, by_outputs: Array, report: Array
) -> None:
    """Writes the derivatives of the policy loss by the actor's outputs [B, 2 C], given those through the critics.

    With a = tanh(u), u = mean + std noise: d log pi / du = 2 a, and d log pi / d log std = 2 a (u - mean) - 1.
    """
    num_rows, num_continuous = by_numbers.shape
    first = rows.proposed.shape[1] - num_continuous
    pull = np.float32(coef) / np.float32(num_rows)
    entropy = 0.0
    for r in range(num_rows):
        for c in range(num_continuous):
            number = rows.proposed[r, first + c]
            by_drawn = by_numbers[r, c] * (_ONE - number * number) + _TWO * pull * number
            by_outputs[r, c] = by_drawn
            log_std = outputs[r, num_continuous + c] + np.float32(initial_log_std)
            is_free = LOWEST_LOG_STD <= log_std <= HIGHEST_LOG_STD
            by_log_std = by_drawn * (rows.drawn[r, c] - outputs[r, c]) - pull
            by_outputs[r, num_continuous + c] = by_log_std if is_free else _ZERO
        entropy -= rows.log_prob[r]
    report[ENTROPY] = entropy / num_rows
    report[POLICY_LOSS] -= coef * report[ENTROPY]


@fast_part
def _lower(first: Float, second: Float) -> Float:
    # A number that is not one must be seen, whichever critic says it.
    return second if second < first or second != second else first
