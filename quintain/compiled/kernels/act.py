"""Acting in one call: normalize observations, run both networks, sample an action, and write the results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.kernels.heads import draw
from quintain.compiled.kernels.mlp import forward, forward_rows
from quintain.compiled.kernels.tables import (
    FIRST_OUTPUT,
    NUM_INPUTS,
    NUM_OUTPUTS,
    ActingScratch,
    Observed,
    PolicyTables,
    Step,
)
from quintain.compiled.runtime.kernel import fast_kernel, fast_part, matrix

if TYPE_CHECKING:
    from quintain.compiled.kernels.tables import Float
    from quintain.typing import Array

FEW_ROWS = 24
"""Number of rows below which vectors along the weights are faster than vectors along the rows."""


@fast_kernel
def act(
    tables: PolicyTables,
    flat: Array,
    seen: tuple[Observed, Observed],
    step: Step,
    is_likeliest: bool,
    scratch: ActingScratch,
) -> None:
    """Samples actions of all lanes, and computes values if there is a critic."""
    for_actor, for_critic = seen
    # One loop for both, so that the networks' code is compiled once.
    for network in range(2):
        layers = tables.actor if network == 0 else tables.critic
        rows = for_actor if network == 0 else for_critic
        if len(layers):
            _evaluate(flat, layers, tables.activation, rows, scratch)
        if network == 0:
            draw(tables, flat, scratch.outputs, step, is_likeliest)
        else:
            for lane in range(len(for_critic.rows)):
                step.value[lane] = scratch.outputs[0, lane] if len(layers) else np.float32(0.0)


@fast_part
def _evaluate(flat: Array, layers: Array, activation: int, seen: Observed, scratch: ActingScratch) -> None:
    """Writes a network's outputs for every row as columns of `scratch.outputs`."""
    num_rows, num_features = seen.rows.shape
    last = len(layers) - 1
    num_outputs = layers[last, NUM_OUTPUTS]
    if num_rows < FEW_ROWS:
        features = matrix(scratch.rows[3], 0, num_rows, num_features)
        for n in range(num_rows):
            for k in range(num_features):
                features[n, k] = scaled(seen, n, k)
        outputs = forward_rows(flat, layers, activation, features, scratch.rows)
        for n in range(num_rows):
            for j in range(num_outputs):
                scratch.outputs[j, n] = outputs[n, j]
        return
    size = scratch.units.shape[1]
    for start in range(0, num_rows, size):
        # The last tile may have columns without a row: they hold old features, and their outputs are not read.
        for r in range(min(size, num_rows - start)):
            for k in range(layers[0, NUM_INPUTS]):
                scratch.units[k, r] = scaled(seen, start + r, k)
        forward(flat, layers, activation, scratch.units, scratch.slopes)
        for r in range(min(size, num_rows - start)):
            for j in range(num_outputs):
                scratch.outputs[j, start + r] = scratch.units[layers[last, FIRST_OUTPUT] + j, r]


@fast_part
def scaled(seen: Observed, n: int, k: int) -> Float:
    x: Float = seen.rows[n, k]
    if len(seen.shift) == 0:
        return x
    clip = np.float32(seen.clip)
    limited: Float = min(max((x - seen.shift[k]) * seen.scale[k], -clip), clip)
    return limited
