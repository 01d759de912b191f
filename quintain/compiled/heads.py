"""Policy heads in compiled form: draw actions, judge given ones, and say how the outputs would change that.

Everything here is about one row of experience, which is one column of `outputs [K, R]`; it computes what
`policies/heads.py` says. After an action was drawn or judged the column holds log-probabilities in place of logits.
"""

from __future__ import annotations

from math import exp, log, log1p, pi
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.compiled.cache import fast_part
from quintain.compiled.tables import FIRST_ALLOWED, FIRST_OPTION, LOG_STD, MEAN, NUM_OPTIONS, PolicyTables

if TYPE_CHECKING:
    from quintain.typing import Array

_ZERO, _HALF, _ONE, _TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))
_HALF_LOG_2PI = np.float32(0.5 * log(2.0 * pi))
_LOG_2 = np.float32(log(2.0))
_FORBIDDEN = np.float32(-1e9)
_LOWEST_LOG_STD, _HIGHEST_LOG_STD = np.float32(-5.0), np.float32(2.0)
_LINEAR_FROM = np.float32(20.0)


@fast_part
def draw(tables: PolicyTables, flat: Array, outputs: Array, r: int, step: Any, is_likeliest: bool) -> Any:
    """Writes an action drawn with the step's noise, or the likeliest one, and returns its log-probability."""
    log_prob = _ZERO
    for c in range(len(tables.choices)):
        choice = tables.choices[c]
        _to_log_probs(outputs, r, choice, step.allowed, r)
        if is_likeliest:
            chosen = _likeliest(outputs, r, choice)
        else:
            chosen = _drawn(outputs, r, choice, step.noise[r, c], step.allowed)
        step.choices[r, c] = chosen
        log_prob += outputs[choice[FIRST_OPTION] + chosen, r]
    for m in range(len(tables.numbers)):
        log_std = _log_std(tables, flat, outputs, r, m)
        noise = _ZERO if is_likeliest else step.noise[r, len(tables.choices) + m]
        number = outputs[tables.numbers[m, MEAN], r] + exp(log_std) * noise
        step.numbers[r, m] = number
        log_prob += -_HALF * noise * noise - log_std - _HALF_LOG_2PI
        if tables.is_squashed:
            log_prob -= _log_slope(number)
    return log_prob


@fast_part
def judge(tables: PolicyTables, flat: Array, outputs: Array, r: int, batch: Any, row: int) -> Any:
    """Returns log-probability and entropy of the action in `row` of a batch, whose outputs stand in column r."""
    log_prob, entropy = _ZERO, _ZERO
    for c in range(len(tables.choices)):
        choice = tables.choices[c]
        _to_log_probs(outputs, r, choice, batch.allowed, row)
        log_prob += outputs[choice[FIRST_OPTION] + batch.choices[row, c], r]
        entropy += _entropy(outputs, r, choice)
    for m in range(len(tables.numbers)):
        log_std = _log_std(tables, flat, outputs, r, m)
        number = batch.numbers[row, m]
        noise = (number - outputs[tables.numbers[m, MEAN], r]) * exp(-log_std)
        log_prob += -_HALF * noise * noise - log_std - _HALF_LOG_2PI
        entropy += log_std + _HALF_LOG_2PI + _HALF
        if tables.is_squashed:
            slope = _log_slope(number)
            log_prob -= slope
            entropy += slope
    return log_prob, entropy


@fast_part
def add_gradient(
    tables: PolicyTables, flat: Array, outputs: Array, r: int, taken: Any, pull: Any, descent: Any
) -> None:
    """Writes derivatives by the outputs, and adds those by parameters of the head, after `judge` saw the column.

    `taken` is (batch, row); `pull` is how much the loss grows with the log-probability and with the entropy;
    `descent` is (deltas, grad).
    """
    (batch, row), (by_log_prob, by_entropy), (deltas, grad) = taken, pull, descent
    for c in range(len(tables.choices)):
        choice = tables.choices[c]
        entropy = _entropy(outputs, r, choice)
        for k in range(choice[NUM_OPTIONS]):
            log_prob = outputs[choice[FIRST_OPTION] + k, r]
            prob = exp(log_prob)
            is_taken = _ONE if batch.choices[row, c] == k else _ZERO
            by_logit = by_log_prob * (is_taken - prob) - by_entropy * prob * (log_prob + entropy)
            deltas[choice[FIRST_OPTION] + k, r] = by_logit
    for m in range(len(tables.numbers)):
        place = tables.numbers[m, LOG_STD]
        log_std = _log_std(tables, flat, outputs, r, m)
        precision = exp(-log_std)
        noise = (batch.numbers[row, m] - outputs[tables.numbers[m, MEAN], r]) * precision
        deltas[tables.numbers[m, MEAN], r] = by_log_prob * noise * precision
        by_log_std = by_log_prob * (noise * noise - _ONE) + by_entropy
        if not tables.has_state_std:
            grad[place] += by_log_std
        elif _LOWEST_LOG_STD <= outputs[place, r] + np.float32(tables.initial_log_std) <= _HIGHEST_LOG_STD:
            deltas[place, r] = by_log_std
        else:
            deltas[place, r] = _ZERO


@fast_part
def _to_log_probs(outputs: Array, r: int, choice: Array, allowed: Array, row: int) -> None:
    """Replaces the logits of a choice by log softmax; what the mask forbids gets no probability."""
    first, size = choice[FIRST_OPTION], choice[NUM_OPTIONS]
    if allowed.shape[1]:
        for k in range(size):
            if not allowed[row, choice[FIRST_ALLOWED] + k]:
                outputs[first + k, r] = _FORBIDDEN
    top = outputs[first, r]
    for k in range(1, size):
        top = max(top, outputs[first + k, r])
    total = _ZERO
    for k in range(size):
        total += exp(outputs[first + k, r] - top)
    shift = top + log(total)
    for k in range(size):
        outputs[first + k, r] -= shift


@fast_part
def _drawn(outputs: Array, r: int, choice: Array, uniform: Any, allowed: Array) -> int:
    """Returns the first option at which the cumulative probability exceeds `uniform`."""
    first, last = choice[FIRST_OPTION], choice[NUM_OPTIONS] - 1
    if allowed.shape[1]:
        # Rounding may leave the whole sum below one: the last possible option takes what is left.
        while last > 0 and not allowed[r, choice[FIRST_ALLOWED] + last]:
            last -= 1
    cumulative = _ZERO
    for k in range(last):
        cumulative += exp(outputs[first + k, r])
        if uniform < cumulative:
            return k
    return last


@fast_part
def _likeliest(outputs: Array, r: int, choice: Array) -> int:
    best = 0
    for k in range(1, choice[NUM_OPTIONS]):
        if outputs[choice[FIRST_OPTION] + k, r] > outputs[choice[FIRST_OPTION] + best, r]:
            best = k
    return best


@fast_part
def _entropy(log_probs: Array, r: int, choice: Array) -> Any:
    entropy = _ZERO
    for k in range(choice[NUM_OPTIONS]):
        log_prob = log_probs[choice[FIRST_OPTION] + k, r]
        entropy -= exp(log_prob) * log_prob
    return entropy


@fast_part
def _log_std(tables: PolicyTables, flat: Array, outputs: Array, r: int, m: int) -> Any:
    place = tables.numbers[m, LOG_STD]
    if not tables.has_state_std:
        return flat[place]
    log_std = outputs[place, r] + np.float32(tables.initial_log_std)
    return min(max(log_std, _LOWEST_LOG_STD), _HIGHEST_LOG_STD)


@fast_part
def _log_slope(number: Any) -> Any:
    """Returns log |d tanh(u) / du|, in a form that does not lose digits for large u."""
    steep = -_TWO * number
    softplus = steep if steep > _LINEAR_FROM else log1p(exp(steep))
    return _TWO * (_LOG_2 - number - softplus)
