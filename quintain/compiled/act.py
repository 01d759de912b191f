"""Acting in one call: scale what is seen, run both networks, draw an action, and write all of it where it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.cache import fast_kernel, fast_part
from quintain.compiled.heads import draw
from quintain.compiled.mlp import forward_rows
from quintain.compiled.tables import Observed, PolicyTables, Step

if TYPE_CHECKING:
    from quintain.typing import Array


@fast_kernel
def act(
    tables: PolicyTables,
    flat: Array,
    seen: tuple[Observed, Observed],
    step: Step,
    is_likeliest: bool,
    memory: Array,
) -> None:
    """Chooses for all lanes and values what they see; `memory [4, N * widest layer]` is overwritten."""
    for_actor, for_critic = seen
    outputs = forward_rows(flat, tables.actor, tables.activation, _scaled(for_actor, memory), memory).T
    for lane in range(len(step.log_prob)):
        step.log_prob[lane] = draw(tables, flat, outputs, lane, step, is_likeliest)
    write_values(tables, flat, for_critic, step.value, memory)


@fast_kernel
def write_values(tables: PolicyTables, flat: Array, seen: Observed, value: Array, memory: Array) -> None:
    """Writes the critic's value of every row; 0 where there is no critic."""
    if len(tables.critic) == 0:
        for lane in range(len(value)):
            value[lane] = np.float32(0.0)
        return
    values = forward_rows(flat, tables.critic, tables.activation, _scaled(seen, memory), memory)
    for lane in range(len(value)):
        value[lane] = values[lane, 0]


@fast_part
def _scaled(seen: Observed, memory: Array) -> Array:
    if len(seen.shift) == 0:
        return seen.rows
    num_rows, num_features = seen.rows.shape
    clip = np.float32(seen.clip)
    scaled = memory[3, : num_rows * num_features].reshape((num_rows, num_features))
    for n in range(num_rows):
        for k in range(num_features):
            x = (seen.rows[n, k] - seen.shift[k]) * seen.scale[k]
            scaled[n, k] = min(max(x, -clip), clip)
    return scaled
