"""Acting of one agent of a team in one call: its body or bodies, both heads, and a sample of its action."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.kernels.activations import activate
from quintain.compiled.kernels.heads import draw
from quintain.compiled.kernels.mlp import add_layer
from quintain.compiled.kernels.tables import ACTIVATION, FIRST_OUTPUT, NUM_OUTPUTS, ActingScratch, AgentTables, Step
from quintain.compiled.runtime.kernel import fast_kernel

if TYPE_CHECKING:
    from quintain.typing import Array

_ZERO = np.float32(0.0)


@fast_kernel
def act_agent(
    tables: AgentTables, flat: Array, rows: Array, step: Step, is_likeliest: bool, scratch: ActingScratch
) -> None:
    """Samples an agent's actions and computes its values, of what it sees [N, F]; all arrays may be strided.

    Every row has the same arithmetic, whatever the number of rows: its result does not depend on the others.
    """
    num_rows, num_features = rows.shape
    units, outputs = scratch.units, scratch.outputs
    size = units.shape[1]
    for start in range(0, num_rows, size):
        # The last tile may have columns without a row: they hold old features, and their outputs are not read.
        count = min(size, num_rows - start)
        for r in range(count):
            for k in range(num_features):
                units[k, r] = rows[start + r, k]
        for i in range(len(tables.layers)):
            layer = tables.layers[i]
            add_layer(flat, layer, units)
            if layer[ACTIVATION] >= 0:
                first, last = layer[FIRST_OUTPUT], layer[FIRST_OUTPUT] + layer[NUM_OUTPUTS]
                activate(layer[ACTIVATION], units[first:last], scratch.slopes[first:last])
        # An agent without a network is uniformly random and has no value.
        has_network = len(tables.layers) > 0
        for r in range(count):
            for j in range(len(outputs)):
                outputs[j, start + r] = units[tables.first_logit + j, r] if has_network else _ZERO
            step.value[start + r] = units[tables.value, r] if has_network else _ZERO
    draw(tables.head, flat, outputs, step, is_likeliest)
