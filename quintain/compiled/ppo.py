"""The gradient of the PPO loss on one minibatch, in one call; `algorithms/ppo.py` says what the loss is.

Rows are taken a tile at a time, so that what is between the layers stays in the processor's cache. The two networks
share no parameters, so the actor is done with before the critic begins.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.compiled.cache import fast_kernel, fast_part
from quintain.compiled.heads import add_gradient, judge
from quintain.compiled.mlp import backward, clear, forward
from quintain.compiled.tables import (
    APPROX_KL,
    CLIP_FRACTION,
    ENTROPY,
    FIRST_OUTPUT,
    NUM_INPUTS,
    POLICY_LOSS,
    VALUE_LOSS,
    Experience,
    PolicyTables,
    PPOWeights,
    Scratch,
)

if TYPE_CHECKING:
    from quintain.typing import Array

_ZERO, _HALF, _ONE, _TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))


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
    """Writes the loss's gradient by the flat parameters to the second of `parameters`, and what to report to `sums`."""
    grad = parameters[1]
    for i in range(len(grad)):
        grad[i] = _ZERO
    for i in range(len(sums)):
        sums[i] = 0.0
    size = scratch.units.shape[1]
    for start in range(0, len(rows), size):
        tile = rows[start : start + size]
        _learn_to_act(tables, parameters, batch, tile, weights, scratch, (len(rows), sums))
        _learn_to_value(tables, parameters, batch, tile, weights, scratch, (len(rows), sums))
    for i in range(len(sums)):
        sums[i] /= len(rows)


@fast_part
def _learn_to_act(
    tables: PolicyTables,
    parameters: Any,
    batch: Experience,
    tile: Array,
    weights: PPOWeights,
    scratch: Scratch,
    whole: Any,
) -> None:
    flat, grad = parameters
    num_rows, sums = whole
    _gather(batch.actor_features, tile, tables.actor, scratch.units)
    forward(flat, tables.actor, tables.activation, scratch.units, scratch.slopes)
    outputs, deltas = _last(scratch.units, tables.actor), _last(scratch.deltas, tables.actor)
    clip, share = np.float32(weights.clip), _ONE / np.float32(num_rows)
    by_entropy = -np.float32(weights.entropy) * share
    for r in range(len(tile)):
        row = tile[r]
        log_prob, entropy = judge(tables, flat, outputs, r, batch, row)
        log_ratio = log_prob - batch.log_prob[row]
        ratio = exp(log_ratio)
        gain = batch.advantage[row] * ratio
        clipped_gain = batch.advantage[row] * min(max(ratio, _ONE - clip), _ONE + clip)
        by_log_prob = -gain * share if gain <= clipped_gain else _ZERO
        add_gradient(tables, flat, outputs, r, (batch, row), (by_log_prob, by_entropy), (deltas, grad))
        sums[POLICY_LOSS] -= min(gain, clipped_gain)
        sums[ENTROPY] += entropy
        sums[APPROX_KL] += ratio - _ONE - log_ratio
        sums[CLIP_FRACTION] += abs(ratio - _ONE) > clip
    clear(deltas, len(tile))
    backward(flat, tables.actor, scratch.units, scratch.slopes, scratch.deltas, grad)


@fast_part
def _learn_to_value(
    tables: PolicyTables,
    parameters: Any,
    batch: Experience,
    tile: Array,
    weights: PPOWeights,
    scratch: Scratch,
    whole: Any,
) -> None:
    flat, grad = parameters
    num_rows, sums = whole
    _gather(batch.critic_features, tile, tables.critic, scratch.units)
    forward(flat, tables.critic, tables.activation, scratch.units, scratch.slopes)
    values, deltas = _last(scratch.units, tables.critic), _last(scratch.deltas, tables.critic)
    share = np.float32(weights.value) / np.float32(num_rows)
    for r in range(len(tile)):
        row = tile[r]
        error, by_value = _squared_error(values[0, r], batch.target[row], batch.value[row], np.float32(weights.clip_value))
        deltas[0, r] = share * by_value
        sums[VALUE_LOSS] += error
    clear(deltas, len(tile))
    backward(flat, tables.critic, scratch.units, scratch.slopes, scratch.deltas, grad)


@fast_part
def _squared_error(value: Any, target: Any, old_value: Any, clip: Any) -> Any:
    """Returns the larger error of the value and of the value held near the old one, and its derivative."""
    error, by_value = (value - target) ** 2, _TWO * (value - target)
    moved = value - old_value
    if clip == np.inf:
        return error, by_value
    near = old_value + min(max(moved, -clip), clip)
    near_error = (near - target) ** 2
    by_near = _TWO * (near - target) if -clip <= moved <= clip else _ZERO
    if near_error > error:
        return near_error, by_near
    # Equal errors share the derivative, as torch.max has it.
    return error, by_value if error > near_error else _HALF * (by_value + by_near)


@fast_part
def _gather(features: Array, tile: Array, layers: Array, units: Array) -> None:
    """Writes the features of a tile's rows as columns; columns that no row fills are zero."""
    for r in range(len(tile)):
        for k in range(layers[0, NUM_INPUTS]):
            units[k, r] = features[tile[r], k]
    clear(units[: layers[0, NUM_INPUTS]], len(tile))


@fast_part
def _last(units: Array, layers: Array) -> Array:
    return units[layers[len(layers) - 1, FIRST_OUTPUT] :]
