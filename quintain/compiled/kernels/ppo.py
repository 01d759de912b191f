"""The gradient of the PPO loss on one minibatch, in one call; `algorithms/ppo.py` defines the loss.

Rows are processed in tiles, so that activations stay in the processor's cache. The two networks share no parameters, so
the actor is completed before the critic starts.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.kernels.heads import add_gradient, judge
from quintain.compiled.kernels.mlp import backward, clear, forward
from quintain.compiled.kernels.tables import (
    APPROX_KL,
    CLIP_FRACTION,
    ENTROPY,
    FIRST_OUTPUT,
    NUM_INPUTS,
    POLICY_LOSS,
    RATIO,
    SQUARED_RATIO,
    VALUE_LOSS,
    Experience,
    Outcomes,
    PolicyTables,
    PPOWeights,
    Scratch,
)
from quintain.compiled.runtime.kernel import fast_kernel, fast_part

if TYPE_CHECKING:
    from quintain.compiled.kernels.tables import Float, Parameters
    from quintain.typing import Array

_ZERO, _HALF, _ONE, _TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))
_MOST = np.float32(40.0)


@fast_kernel
def minibatch_gradient(
    tables: PolicyTables,
    parameters: tuple[Array, Array],
    batch: Experience,
    rows: Array,
    weights: PPOWeights,
    scratch: Scratch,
    sums: Array,
) -> None:
    """Writes the gradient by the flat parameters to the second of `parameters`, and metrics to `sums`."""
    flat, grad = parameters
    for i in range(len(grad)):
        grad[i] = _ZERO
    for i in range(len(sums)):
        sums[i] = 0.0
    share = _ONE / np.float32(len(rows))
    size = scratch.units.shape[1]
    for start in range(0, len(rows), size):
        tile = rows[start : start + size]
        take(batch.outcomes, tile, scratch.tile)
        # One loop for both, so that the networks' code is compiled once.
        for network in range(2):
            layers = tables.actor if network == 0 else tables.critic
            _gather(batch.actor_features if network == 0 else batch.critic_features, tile, layers, scratch.units)
            forward(flat, layers, tables.activation, scratch.units, scratch.slopes)
            outputs, deltas = last_layer(scratch.units, layers), last_layer(scratch.deltas, layers)
            if network == 0:
                ends = outputs, deltas, scratch.judged
                judge_actions(tables, parameters, scratch.tile, len(tile), (weights, share), ends, sums)
            else:
                judge_values(scratch.tile, len(tile), weights, share, outputs, deltas, sums)
            clear(deltas, len(tile))
            backward(flat, layers, scratch.units, scratch.slopes, scratch.deltas, grad)
    for i in range(len(sums)):
        sums[i] *= share


@fast_part
def judge_actions(
    tables: PolicyTables,
    parameters: Parameters,
    tile: Outcomes,
    num_rows: int,
    scales: tuple[PPOWeights, Float],
    ends: tuple[Array, Array, Array],
    sums: Array,
) -> None:
    """Writes the derivatives of the clipped surrogate and the entropy by the actor's outputs."""
    (weights, share), (outputs, deltas, judged) = scales, ends
    judge(tables, parameters[0], outputs, deltas, tile, num_rows, judged)
    clip = np.float32(weights.clip)
    num_components = tile.components.shape[1]
    for r in range(num_rows):
        log_ratio = judged[0, r] - tile.log_prob[r]
        sums[ENTROPY] += judged[1, r]
        sums[APPROX_KL] += exp(log_ratio) - _ONE - log_ratio
        ratio = exp(min(log_ratio, _MOST))
        sums[RATIO] += ratio
        sums[SQUARED_RATIO] += ratio * ratio
        if num_components == 0:
            judged[0, r] = _clip(log_ratio, tile.advantage[r], clip, share, sums, _ONE)
    part = _ONE / np.float32(max(1, num_components))
    for k in range(num_components):
        for r in range(num_rows):
            log_ratio = judged[2 + k, r] - tile.components[r, k]
            judged[2 + k, r] = _clip(log_ratio, tile.advantage[r], clip, share * part, sums, part)
    pull = judged[2 if num_components else 0 :], -np.float32(weights.entropy) * share
    add_gradient(tables, parameters, outputs, deltas, tile, num_rows, pull)


@fast_part
def _clip(log_ratio: Float, advantage: Float, clip: np.float32, share: Float, sums: Array, part: Float) -> Float:
    """Returns the derivative of the loss by a log-probability, and adds the loss to the sums."""
    ratio: Float = exp(log_ratio)
    gain = advantage * ratio
    clipped_gain = advantage * min(max(ratio, _ONE - clip), _ONE + clip)
    sums[POLICY_LOSS] -= part * min(gain, clipped_gain)
    sums[CLIP_FRACTION] += part * (abs(ratio - _ONE) > clip)
    # In this order a number that is not one reaches the gradient, and the step is left out.
    return _ZERO if gain > clipped_gain else -gain * share


@fast_part
def judge_values(
    tile: Outcomes, num_rows: int, weights: PPOWeights, share: Float, values: Array, deltas: Array, sums: Array
) -> None:
    """Writes the derivative of the squared error by the critic's output."""
    clip, scale = np.float32(weights.clip_value), np.float32(weights.value) * share
    for r in range(num_rows):
        error, by_value = _squared_error(values[0, r], tile.target[r], tile.value[r], clip)
        deltas[0, r] = scale * by_value
        sums[VALUE_LOSS] += error


@fast_part
def _squared_error(value: Float, target: Float, old_value: Float, clip: Float) -> tuple[Float, Float]:
    """Returns the larger error of the value and of the value clipped around the old one, and its derivative."""
    error, by_value = (value - target) * (value - target), _TWO * (value - target)
    if clip == np.inf:
        return error, by_value
    moved = value - old_value
    near = old_value + min(max(moved, -clip), clip)
    near_error = (near - target) * (near - target)
    by_near = _TWO * (near - target) if -clip <= moved <= clip else _ZERO
    if near_error > error:
        return near_error, by_near
    # Equal errors share the derivative, as torch.max has it.
    return error, by_value if error > near_error else _HALF * (by_value + by_near)


@fast_part
def take(outcomes: Outcomes, rows: Array, tile: Outcomes) -> None:
    """Copies rows next to each other.

    They are far apart in memory: a loop that only copies waits for many of them at once.
    """
    for r in range(len(rows)):
        row = rows[r]
        tile.log_prob[r], tile.value[r] = outcomes.log_prob[row], outcomes.value[row]
        tile.advantage[r], tile.target[r] = outcomes.advantage[row], outcomes.target[row]
    _take_columns(outcomes.allowed, rows, tile.allowed)
    _take_columns(outcomes.choices, rows, tile.choices)
    _take_columns(outcomes.numbers, rows, tile.numbers)
    _take_columns(outcomes.components, rows, tile.components)


@fast_part
def _take_columns(values: Array, rows: Array, taken: Array) -> None:
    for r in range(len(rows)):
        for k in range(values.shape[1]):
            taken[r, k] = values[rows[r], k]


@fast_part
def _gather(features: Array, tile: Array, layers: Array, units: Array) -> None:
    """Writes the features of a tile's rows as columns; unused columns are zero."""
    for r in range(len(tile)):
        for k in range(layers[0, NUM_INPUTS]):
            units[k, r] = features[tile[r], k]
    clear(units[: layers[0, NUM_INPUTS]], len(tile))


@fast_part
def last_layer(units: Array, layers: Array) -> Array:
    return units[layers[len(layers) - 1, FIRST_OUTPUT] :]
