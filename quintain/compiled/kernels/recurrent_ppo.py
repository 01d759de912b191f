"""The gradient of the PPO loss on one minibatch of whole lanes, for a recurrent policy, in one call.

The recurrent layer processes the sequences first; the networks behind it process the valid steps in tiles, as in
`ppo.py`; backpropagation through time comes last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.kernels.memory import STRIPE, replay, replay_back
from quintain.compiled.kernels.mlp import add_product, backward, clear, forward, weight_of
from quintain.compiled.kernels.ppo import judge_actions, judge_values, last_layer, take
from quintain.compiled.kernels.tables import (
    FIRST_OUTPUT,
    MEMORY_SIZE,
    NUM_OUTPUTS,
    MemoryTables,
    PolicyTables,
    PPOWeights,
    Scratch,
    Sequences,
    SequenceScratch,
)
from quintain.compiled.runtime.kernel import fast_kernel, fast_part

if TYPE_CHECKING:
    from quintain.typing import Array

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@fast_kernel
def sequence_gradient(
    tables: tuple[PolicyTables, MemoryTables],
    parameters: tuple[Array, Array],
    batch: Sequences,
    lanes: Array,
    weights: PPOWeights,
    scratch: tuple[Scratch, SequenceScratch],
    sums: Array,
) -> int:
    """Does the same as `minibatch_gradient`, for all valid steps of `lanes`, and returns their number."""
    (policy, memory), (flat, grad), (tiled, unrolled) = tables, parameters, scratch
    for i in range(len(grad)):
        grad[i] = _ZERO
    for i in range(len(sums)):
        sums[i] = 0.0
    num_rows = _list_rows(batch.valid, len(batch.state), lanes, unrolled)
    share = _ONE / np.float32(num_rows)
    size = tiled.units.shape[1]
    num_memories = len(memory.trunks)
    for m in range(num_memories):
        trunk = memory.trunks[m]
        features = batch.experience.actor_features if m == 0 else batch.experience.critic_features
        replay(memory.cell, trunk, flat, (features, batch.first, batch.state), lanes, unrolled)
        clear(unrolled.by_output, 0)
        for start in range(0, num_rows, size):
            stop = min(start + size, num_rows)
            rows, places = unrolled.rows[start:stop], unrolled.places[start:stop]
            take(batch.experience.outcomes, rows, tiled.tile)
            # Both networks behind one memory, or each behind its own.
            for network in range(m, 2 if num_memories == 1 else m + 1):
                layers = policy.actor if network == 0 else policy.critic
                _gather(unrolled.outputs, places, tiled.units[: trunk[MEMORY_SIZE]])
                forward(flat, layers, policy.activation, tiled.units, tiled.slopes)
                outputs, deltas = last_layer(tiled.units, layers), last_layer(tiled.deltas, layers)
                if network == 0:
                    ends = outputs, deltas, tiled.judged
                    judge_actions(policy, parameters, tiled.tile, len(rows), (weights, share), ends, sums)
                else:
                    judge_values(tiled.tile, len(rows), weights, share, outputs, deltas, sums)
                clear(deltas, len(rows))
                backward(flat, layers, tiled.units, tiled.slopes, tiled.deltas, grad)
                _pass_back(flat, layers[0], tiled.deltas, places, unrolled.by_output)
        replay_back(memory.cell, trunk, parameters, batch.cut, (lanes, len(batch.state)), unrolled)
    for i in range(len(sums)):
        sums[i] *= share
    return num_rows


@fast_part
def _list_rows(valid: Array, num_all: int, lanes: Array, scratch: SequenceScratch) -> int:
    """Lists the valid steps of the lanes: their rows in the batch, and their indices in the minibatch."""
    num_rows = 0
    for t in range(len(valid) // num_all):
        for i in range(len(lanes)):
            row = t * num_all + lanes[i]
            if valid[row]:
                scratch.rows[num_rows] = row
                scratch.places[num_rows] = t * len(lanes) + i
                num_rows += 1
    return num_rows


@fast_part
def _gather(outputs: Array, places: Array, units: Array) -> None:
    """Transposes rows to columns, a cache line at a time; unused columns are zero."""
    for start in range(0, len(places), STRIPE):
        stop = min(start + STRIPE, len(places))
        for k in range(outputs.shape[1]):
            for r in range(start, stop):
                units[k, r] = outputs[places[r], k]
    clear(units, len(places))


@fast_part
def _pass_back(flat: Array, layer: Array, deltas: Array, places: Array, by_output: Array) -> None:
    """Adds the derivatives by a network's inputs, which are the recurrent outputs, to `by_output`."""
    inwards = deltas[: by_output.shape[1]]
    clear(inwards, 0)
    outwards = deltas[layer[FIRST_OUTPUT] : layer[FIRST_OUTPUT] + layer[NUM_OUTPUTS]]
    add_product(weight_of(flat, layer).T, outwards, inwards)
    for start in range(0, len(places), STRIPE):
        stop = min(start + STRIPE, len(places))
        for k in range(by_output.shape[1]):
            for r in range(start, stop):
                by_output[places[r], k] += inwards[k, r]
