"""Compiled policy heads: sample actions, evaluate given ones, and compute derivatives by the outputs.

A row of experience is a column of `outputs [K, R]`; the formulas are those of `policies/heads.py`. After an action was
sampled or evaluated, its column holds log-probabilities in place of logits.
"""

from __future__ import annotations

from math import exp, log, log1p, pi, sqrt
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from quintain.compiled.kernels.activations import tanh
from quintain.compiled.kernels.tables import (
    FIRST_ALLOWED,
    FIRST_OPTION,
    LOG_STD,
    MEAN,
    NUM_OPTIONS,
    Outcomes,
    PolicyTables,
)
from quintain.compiled.runtime.kernel import fast_part

if TYPE_CHECKING:
    from quintain.compiled.kernels.tables import Float, Parameters, Step
    from quintain.typing import Array

    Pull: TypeAlias = tuple[Array, Float]

_ZERO, _HALF, _ONE, _TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))
HALF_LOG_2PI = np.float32(0.5 * log(2.0 * pi))
_LOG_2 = np.float32(log(2.0))
_FORBIDDEN = np.float32(-1e9)
LOWEST_LOG_STD, HIGHEST_LOG_STD = np.float32(-5.0), np.float32(2.0)
_LINEAR_FROM = np.float32(20.0)
# The mixture of `policies/heads.py`, written again: kept code is named by the source in this folder alone.
LOGISTIC_WEIGHTS = (0.0469060, 0.3041091, 0.4296890, 0.1985835, 0.0207124)
LOGISTIC_STDS = (0.4477658, 0.6268409, 0.8766396, 1.2310878, 1.7353614)
_LOGISTIC_WEIGHTS = tuple(np.float32(weight) for weight in LOGISTIC_WEIGHTS)
_LOGISTIC_VARIANCES = tuple(np.float32(std * std) for std in LOGISTIC_STDS)
_ROOT_HALF, _ROOT_2_OVER_PI = np.float32(sqrt(0.5)), np.float32(sqrt(2.0 / pi))
# Abramowitz and Stegun 7.1.26: erf(x) = 1 - t (a1 + t (a2 + ...)) exp(-x^2), t = 1 / (1 + p x), to 1.5e-7 for x >= 0.
_ERF_P = np.float32(0.3275911)
_ERF_A1, _ERF_A2, _ERF_A3, _ERF_A4, _ERF_A5 = (
    np.float32(a) for a in (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
)


@fast_part
def draw(tables: PolicyTables, flat: Array, outputs: Array, step: Step, is_likeliest: bool) -> None:
    """Writes actions sampled with the step's noise, or the most likely ones, and their log-probabilities."""
    allowed, noise, log_prob, components = step.allowed, step.noise, step.log_prob, step.components
    has_components = components.shape[1] > 0
    for r in range(len(log_prob)):
        log_prob[r] = _ZERO
    for c in range(len(tables.choices)):
        first, size = tables.choices[c, FIRST_OPTION], tables.choices[c, NUM_OPTIONS]
        mask = tables.choices[c, FIRST_ALLOWED]
        for r in range(len(log_prob)):
            chosen = _only_option(allowed, r, mask, size)
            if chosen >= 0:
                # What the formulas would give, without them; the difference is NaN where the logit is not finite.
                outputs[first + chosen, r] -= outputs[first + chosen, r]
            else:
                _to_log_probs(outputs, r, first, size, allowed, mask)
                if is_likeliest:
                    chosen = _likeliest(outputs, r, first, size)
                else:
                    chosen = _drawn(outputs, r, first, size, noise[r, c], allowed, mask)
            step.choices[r, c] = chosen
            log_prob[r] += outputs[first + chosen, r]
            if has_components:
                components[r, c] = outputs[first + chosen, r]
    for m in range(len(tables.numbers)):
        mean, place = tables.numbers[m, MEAN], tables.numbers[m, LOG_STD]
        log_std = _ZERO if tables.has_state_std else flat[place]
        std = exp(log_std)
        for r in range(len(log_prob)):
            if tables.has_state_std:
                log_std = _state_log_std(tables, outputs[place, r])
                std = exp(log_std)
            drawn = _ZERO if is_likeliest else noise[r, len(tables.choices) + m]
            number = outputs[mean, r] + std * drawn
            step.numbers[r, m] = number
            density = -_HALF * drawn * drawn - log_std - HALF_LOG_2PI
            if tables.is_squashed:
                density -= log_slope(number)
            log_prob[r] += density
            if has_components:
                components[r, len(tables.choices) + m] = density


@fast_part
def judge(
    tables: PolicyTables, flat: Array, outputs: Array, deltas: Array, tile: Outcomes, num_rows: int, judged: Array
) -> None:
    """Writes log-probability and entropy of a tile's actions to `judged [2, R]`.

    Where components are clipped independently, their log-probabilities follow, and the entropies of continuous actions
    are averaged. `add_gradient` needs the log-probabilities left in `outputs`, and the probabilities in `deltas`.
    """
    allowed, choices, numbers = tile.allowed, tile.choices, tile.numbers
    has_components = tile.components.shape[1] > 0
    part = _part_of_entropy(tables, tile)
    for r in range(num_rows):
        judged[0, r] = judged[1, r] = _ZERO
    for c in range(len(tables.choices)):
        first, size = tables.choices[c, FIRST_OPTION], tables.choices[c, NUM_OPTIONS]
        mask = tables.choices[c, FIRST_ALLOWED]
        for r in range(num_rows):
            _to_log_probs(outputs, r, first, size, allowed, mask)
            for k in range(first, first + size):
                deltas[k, r] = exp(outputs[k, r])
                judged[1, r] -= deltas[k, r] * outputs[k, r]
            log_prob = outputs[first + choices[r, c], r]
            judged[0, r] += log_prob
            if has_components:
                judged[2 + c, r] = log_prob
    for m in range(len(tables.numbers)):
        mean, place = tables.numbers[m, MEAN], tables.numbers[m, LOG_STD]
        log_std = _ZERO if tables.has_state_std else flat[place]
        precision = exp(-log_std)
        for r in range(num_rows):
            if tables.has_state_std:
                log_std = _state_log_std(tables, outputs[place, r])
                precision = exp(-log_std)
            number = numbers[r, m]
            noise = (number - outputs[mean, r]) * precision
            slope = log_slope(number) if tables.is_squashed else _ZERO
            density = -_HALF * noise * noise - log_std - HALF_LOG_2PI - slope
            judged[0, r] += density
            judged[1, r] += part * (log_std + HALF_LOG_2PI + _HALF)
            if has_components:
                judged[2 + len(tables.choices) + m, r] = density
    if tables.is_squashed:
        # Loops of their own, because they have no calls and become vector instructions.
        for m in range(len(tables.numbers)):
            mean, place = tables.numbers[m, MEAN], tables.numbers[m, LOG_STD]
            variance = _ZERO if tables.has_state_std else exp(_TWO * flat[place])
            for r in range(num_rows):
                if tables.has_state_std:
                    variance = exp(_TWO * _state_log_std(tables, outputs[place, r]))
                judged[1, r] += part * mean_log_slope(outputs[mean, r], variance)[0]


@fast_part
def add_gradient(
    tables: PolicyTables,
    parameters: Parameters,
    outputs: Array,
    deltas: Array,
    tile: Outcomes,
    num_rows: int,
    pull: Pull,
) -> None:
    """Writes derivatives by the outputs, and adds those by the head's parameters, after `judge` evaluated the columns.

    `pull` is the derivative of the loss by each row's log-probability [1, R], or by that of each component [K, R], and
    by the entropy.
    """
    (flat, grad), (pulls, by_entropy) = parameters, pull
    choices, numbers = tile.choices, tile.numbers
    has_components = tile.components.shape[1] > 0
    by_part = by_entropy * _part_of_entropy(tables, tile)
    for c in range(len(tables.choices)):
        first = tables.choices[c, FIRST_OPTION]
        last = first + tables.choices[c, NUM_OPTIONS]
        by_log_prob = pulls[c if has_components else 0]
        for r in range(num_rows):
            entropy = _ZERO
            for k in range(first, last):
                entropy -= deltas[k, r] * outputs[k, r]
            for k in range(first, last):
                deltas[k, r] *= -by_log_prob[r] - by_entropy * (outputs[k, r] + entropy)
            deltas[first + choices[r, c], r] += by_log_prob[r]
    for m in range(len(tables.numbers)):
        mean, place = tables.numbers[m, MEAN], tables.numbers[m, LOG_STD]
        by_log_prob = pulls[len(tables.choices) + m if has_components else 0]
        precision = _ONE if tables.has_state_std else exp(-flat[place])
        by_shared_log_std = _ZERO
        for r in range(num_rows):
            if tables.has_state_std:
                precision = exp(-_state_log_std(tables, outputs[place, r]))
            noise = (numbers[r, m] - outputs[mean, r]) * precision
            deltas[mean, r] = by_log_prob[r] * noise * precision
            by_log_std = by_log_prob[r] * (noise * noise - _ONE) + by_part
            if tables.has_state_std:
                is_free = LOWEST_LOG_STD <= outputs[place, r] + np.float32(tables.initial_log_std) <= HIGHEST_LOG_STD
                deltas[place, r] = by_log_std if is_free else _ZERO
            else:
                by_shared_log_std += by_log_std
        if not tables.has_state_std:
            grad[place] += by_shared_log_std
    if tables.is_squashed:
        _add_gradient_of_squashing(tables, parameters, outputs, deltas, num_rows, by_part)


@fast_part
def _add_gradient_of_squashing(
    tables: PolicyTables, parameters: Parameters, outputs: Array, deltas: Array, num_rows: int, by_part: Float
) -> None:
    """Adds the entropy's derivatives through tanh squashing; each continuous component has the weight `by_part`."""
    flat, grad = parameters
    for m in range(len(tables.numbers)):
        mean, place = tables.numbers[m, MEAN], tables.numbers[m, LOG_STD]
        variance = _ZERO if tables.has_state_std else exp(_TWO * flat[place])
        by_shared_log_std = _ZERO
        for r in range(num_rows):
            if tables.has_state_std:
                variance = exp(_TWO * _state_log_std(tables, outputs[place, r]))
            _, by_mean, by_log_std = mean_log_slope(outputs[mean, r], variance)
            deltas[mean, r] += by_part * by_mean
            if tables.has_state_std:
                is_free = LOWEST_LOG_STD <= outputs[place, r] + np.float32(tables.initial_log_std) <= HIGHEST_LOG_STD
                deltas[place, r] += by_part * by_log_std if is_free else _ZERO
            else:
                by_shared_log_std += by_part * by_log_std
        if not tables.has_state_std:
            grad[place] += by_shared_log_std


@fast_part
def _part_of_entropy(tables: PolicyTables, tile: Outcomes) -> Float:
    """Returns the weight of one continuous component's entropy."""
    return _ONE / np.float32(len(tables.numbers)) if tile.components.shape[1] and len(tables.numbers) else _ONE


@fast_part
def _only_option(allowed: Array, r: int, mask: int, size: int) -> int:
    """Returns the only allowed option of a discrete action, as of an agent whose turn it is not; -1 if several are."""
    only = -1
    if allowed.shape[1]:
        for k in range(size):
            if allowed[r, mask + k]:
                if only >= 0:
                    return -1
                only = k
    return only


@fast_part
def _to_log_probs(outputs: Array, r: int, first: int, size: int, allowed: Array, mask: int) -> None:
    """Replaces the logits of a discrete action by log softmax; masked options get probability 0."""
    if allowed.shape[1]:
        for k in range(size):
            if not allowed[r, mask + k]:
                outputs[first + k, r] = _FORBIDDEN
    top = outputs[first, r]
    for k in range(first + 1, first + size):
        top = max(top, outputs[k, r])
    total = _ZERO
    for k in range(first, first + size):
        total += exp(outputs[k, r] - top)
    shift = top + log(total)
    for k in range(first, first + size):
        outputs[k, r] -= shift


@fast_part
def _drawn(outputs: Array, r: int, first: int, size: int, uniform: Float, allowed: Array, mask: int) -> int:
    """Returns the first option at which the cumulative probability exceeds `uniform`."""
    last = size - 1
    if allowed.shape[1]:
        # Rounding may leave the whole sum below one: the last possible option takes what is left.
        while last > 0 and not allowed[r, mask + last]:
            last -= 1
    cumulative = _ZERO
    for k in range(last):
        cumulative += exp(outputs[first + k, r])
        if uniform < cumulative:
            return k
    return last


@fast_part
def _likeliest(outputs: Array, r: int, first: int, size: int) -> int:
    best = 0
    for k in range(1, size):
        if outputs[first + k, r] > outputs[first + best, r]:
            best = k
    return best


@fast_part
def _state_log_std(tables: PolicyTables, output: Float) -> Float:
    log_std = output + np.float32(tables.initial_log_std)
    return min(max(log_std, LOWEST_LOG_STD), HIGHEST_LOG_STD)


@fast_part
def mean_log_slope(mean: np.float32, variance: Float) -> tuple[Float, Float, Float]:
    """Returns the expectation of log |d tanh(u) / du| over u ~ N(mean, variance), and its derivatives.

    The derivatives are by the mean and by the log-deviation. `GaussianHead` of policies/heads.py has the formula.
    """
    absolute = by_mean = by_variance = _ZERO
    for j in range(len(_LOGISTIC_WEIGHTS)):
        total = variance + _LOGISTIC_VARIANCES[j]
        std = np.float32(sqrt(total))
        scaled = _ROOT_HALF * abs(mean) / std
        # exp(-x) = (1 - t) / (1 + t) with t = tanh(x / 2): to 4e-7, and no call that a vector would wait for.
        t = tanh(_HALF * scaled * scaled)
        density = (_ONE - t) / (_ONE + t)
        s = _ONE / (_ONE + _ERF_P * scaled)
        erf = _ONE - density * s * (_ERF_A1 + s * (_ERF_A2 + s * (_ERF_A3 + s * (_ERF_A4 + s * _ERF_A5))))
        weight = _LOGISTIC_WEIGHTS[j]
        absolute += weight * (abs(mean) * erf + _ROOT_2_OVER_PI * std * density)
        by_mean += weight * erf
        by_variance += weight * _ROOT_2_OVER_PI * density / std
    sign = -_TWO if mean > _ZERO else _TWO
    return _TWO * (_LOG_2 - absolute), sign * by_mean, -_TWO * variance * by_variance


@fast_part
def log_slope(number: Float) -> Float:
    """Returns log |d tanh(u) / du|, in a numerically stable form for large u."""
    steep = -_TWO * number
    softplus = steep if steep > _LINEAR_FROM else log1p(exp(steep))
    return _TWO * (_LOG_2 - number - softplus)
