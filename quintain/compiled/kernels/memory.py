"""Compiled LSTM and GRU: one step for acting, sequences for learning, and backpropagation through time.

The formulas are those of `policies/memory.py`. Acting goes by rows, so that a lane's result does not depend on the
number of lanes. In sequences the rows of one step are contiguous: each step is one product with transposed weights, so
that vectors run along the gates for any number of lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.kernels.act import scaled
from quintain.compiled.kernels.activations import tanh
from quintain.compiled.kernels.mlp import add_product, add_products_of_rows, add_row_sums, clear
from quintain.compiled.kernels.tables import (
    FIRST_STATE,
    INPUT_BIAS,
    INPUT_WEIGHT,
    LSTM,
    MEMORY_SIZE,
    NUM_FEATURES,
    NUM_GATES,
    STATE_BIAS,
    STATE_WEIGHT,
    MemoryTables,
    Observed,
    SequenceScratch,
)
from quintain.compiled.runtime.kernel import fast_kernel, fast_part, matrix

if TYPE_CHECKING:
    from quintain.compiled.kernels.tables import Float
    from quintain.typing import Array

_ZERO, _HALF, _ONE = (np.float32(x) for x in (0.0, 0.5, 1.0))

BLOCK = 32
"""Rows per block of a step of acting: even, and small enough for the cache."""
STRIPE = 16
"""Rows per block of a transposition: one cache line."""


@fast_kernel
def remember(
    memory: MemoryTables,
    flat: Array,
    seen: tuple[Observed, Observed],
    first: Array,
    state: Array,
    outputs: Array,
    scratch: Array,
) -> None:
    """Takes one step of every lane: updates `state [N, S]` in place and writes `outputs [memories, N, size]`.

    `scratch [4, BLOCK * widest]` is temporary memory.
    """
    for_actor, for_critic = seen
    for m in range(len(memory.trunks)):
        trunk = memory.trunks[m]
        rows = for_actor if m == 0 else for_critic
        for start in range(0, len(state), BLOCK):
            _step_block(memory.cell, trunk, flat, rows, (first, state, outputs[m]), start, scratch)


@fast_part
def _step_block(
    cell: int, trunk: Array, flat: Array, seen: Observed, lanes: tuple[Array, Array, Array], start: int, scratch: Array
) -> None:
    first, state, outputs = lanes
    num_rows = min(BLOCK, len(state) - start)
    # An even number: a row that is left alone would be summed up in another order. The last one may belong to nobody.
    num_even = num_rows + num_rows % 2
    num_features, size, num_gates = trunk[NUM_FEATURES], trunk[MEMORY_SIZE], trunk[NUM_GATES]
    hidden, cells = trunk[FIRST_STATE], trunk[FIRST_STATE] + size
    features = matrix(scratch[0], 0, num_even, num_features)
    before = matrix(scratch[1], 0, num_even, size)
    inputs = matrix(scratch[2], 0, num_even, num_gates)
    recurrent = matrix(scratch[3], 0, num_even, num_gates)
    for n in range(num_rows):
        for k in range(num_features):
            features[n, k] = scaled(seen, start + n, k)
        for j in range(size):
            before[n, j] = _ZERO if first[start + n] else state[start + n, hidden + j]
    for n in range(num_even):
        for j in range(num_gates):
            inputs[n, j], recurrent[n, j] = flat[trunk[INPUT_BIAS] + j], flat[trunk[STATE_BIAS] + j]
    add_products_of_rows(features, matrix(flat, trunk[INPUT_WEIGHT], num_gates, num_features), inputs)
    add_products_of_rows(before, matrix(flat, trunk[STATE_WEIGHT], num_gates, size), recurrent)
    for n in range(num_rows):
        lane = start + n
        if cell == LSTM:
            for j in range(size):
                old = _ZERO if first[lane] else state[lane, cells + j]
                enter = sigmoid(inputs[n, j] + recurrent[n, j])
                forget = sigmoid(inputs[n, size + j] + recurrent[n, size + j])
                candidate = tanh(inputs[n, 2 * size + j] + recurrent[n, 2 * size + j])
                leave = sigmoid(inputs[n, 3 * size + j] + recurrent[n, 3 * size + j])
                new = forget * old + enter * candidate
                state[lane, cells + j] = new
                outputs[lane, j] = leave * tanh(new)
        else:
            for j in range(size):
                reset = sigmoid(inputs[n, j] + recurrent[n, j])
                update = sigmoid(inputs[n, size + j] + recurrent[n, size + j])
                candidate = tanh(inputs[n, 2 * size + j] + reset * recurrent[n, 2 * size + j])
                outputs[lane, j] = (_ONE - update) * candidate + update * before[n, j]
        for j in range(size):
            state[lane, hidden + j] = outputs[lane, j]


@fast_part
def replay(
    cell: int, trunk: Array, flat: Array, fields: tuple[Array, Array, Array], lanes: Array, scratch: SequenceScratch
) -> None:
    """Runs the sequences of some lanes and keeps in `scratch` all values for the backward pass.

    `fields` are features [T * N, F], first [T * N] and state [N, S] of all lanes.
    """
    all_features, first, state = fields
    num_features, size, num_gates = trunk[NUM_FEATURES], trunk[MEMORY_SIZE], trunk[NUM_GATES]
    num_lanes, num_all = len(lanes), len(state)
    num_steps = len(first) // num_all
    features = matrix(scratch.features, 0, num_steps * num_lanes, num_features)
    for t in range(num_steps):
        for i in range(num_lanes):
            for k in range(num_features):
                features[t * num_lanes + i, k] = all_features[t * num_all + lanes[i], k]
    input_weight = matrix(scratch.input_weight, 0, num_features, num_gates)
    _exchange(matrix(flat, trunk[INPUT_WEIGHT], num_gates, num_features), input_weight)
    _exchange(matrix(flat, trunk[STATE_WEIGHT], num_gates, size), scratch.state_weight)
    _fill_rows(flat, trunk[INPUT_BIAS], scratch.gates)
    add_product(features, input_weight, scratch.gates)
    for t in range(num_steps):
        now = t * num_lanes
        for i in range(num_lanes):
            begins, lane = first[t * num_all + lanes[i]], lanes[i]
            for j in range(size):
                hidden = state[lane, trunk[FIRST_STATE] + j] if t == 0 else scratch.outputs[now - num_lanes + i, j]
                scratch.before[now + i, j] = _ZERO if begins else hidden
            if cell == LSTM:
                for j in range(size):
                    old = state[lane, trunk[FIRST_STATE] + size + j] if t == 0 else scratch.by_state[1, i, j]
                    scratch.side[now + i, j] = _ZERO if begins else old
        _fill_rows(flat, trunk[STATE_BIAS], scratch.recurrent)
        add_product(scratch.before[now : now + num_lanes], scratch.state_weight, scratch.recurrent)
        for i in range(num_lanes):
            _step_row(cell, size, now + i, i, scratch)


@fast_part
def _step_row(cell: int, size: int, r: int, i: int, scratch: SequenceScratch) -> None:
    """Computes the gates of one lane in one step; an LSTM's cell state is in `by_state`, which is unused meanwhile."""
    gates, recurrent = scratch.gates[r], scratch.recurrent[i]
    if cell == LSTM:
        for j in range(size):
            enter = sigmoid(gates[j] + recurrent[j])
            forget = sigmoid(gates[size + j] + recurrent[size + j])
            candidate = tanh(gates[2 * size + j] + recurrent[2 * size + j])
            leave = sigmoid(gates[3 * size + j] + recurrent[3 * size + j])
            new = forget * scratch.side[r, j] + enter * candidate
            gates[j], gates[size + j], gates[2 * size + j], gates[3 * size + j] = enter, forget, candidate, leave
            scratch.by_state[1, i, j] = new
            scratch.outputs[r, j] = leave * tanh(new)
    else:
        for j in range(size):
            reset = sigmoid(gates[j] + recurrent[j])
            update = sigmoid(gates[size + j] + recurrent[size + j])
            candidate = tanh(gates[2 * size + j] + reset * recurrent[2 * size + j])
            gates[j], gates[size + j], gates[2 * size + j] = reset, update, candidate
            scratch.side[r, j] = recurrent[2 * size + j]
            scratch.outputs[r, j] = (_ONE - update) * candidate + update * scratch.before[r, j]


@fast_part
def replay_back(
    cell: int,
    trunk: Array,
    parameters: tuple[Array, Array],
    cut: Array,
    lanes: tuple[Array, int],
    scratch: SequenceScratch,
) -> None:
    """Adds the gradient by a recurrent layer's parameters, after `replay` and with the derivatives by its outputs.

    No derivative goes back over the beginning of a step in `cut`. `lanes` are those of the minibatch, and the total
    number.
    """
    (flat, grad), (chosen, num_all) = parameters, lanes
    num_features, size, num_gates = trunk[NUM_FEATURES], trunk[MEMORY_SIZE], trunk[NUM_GATES]
    num_lanes = len(chosen)
    num_rows = len(scratch.gates)
    by_hidden, by_cell = scratch.by_state[0], scratch.by_state[1]
    clear(by_hidden, 0)
    clear(by_cell, 0)
    state_weight = matrix(flat, trunk[STATE_WEIGHT], num_gates, size)
    for t in range(num_rows // num_lanes - 1, -1, -1):
        now = t * num_lanes
        for i in range(num_lanes):
            _step_row_back(cell, size, now + i, by_hidden[i], by_cell[i], scratch)
        add_product(scratch.gates[now : now + num_lanes], state_weight, by_hidden)
        for i in range(num_lanes):
            if cut[t * num_all + chosen[i]]:
                for j in range(size):
                    by_hidden[i, j] = by_cell[i, j] = _ZERO
    features = matrix(scratch.features, 0, num_rows, num_features)
    num_columns = scratch.gate_columns.shape[1]
    before, inputs = scratch.input_columns[:size], scratch.input_columns[:num_features]
    for start in range(0, num_rows, num_columns):
        stop = min(start + num_columns, num_rows)
        to_columns(scratch.gates[start:stop], scratch.gate_columns)
        to_columns(scratch.before[start:stop], before)
        add_products_of_rows(scratch.gate_columns, before, matrix(grad, trunk[STATE_WEIGHT], num_gates, size))
        add_row_sums(scratch.gate_columns, grad[trunk[STATE_BIAS] : trunk[STATE_BIAS] + num_gates])
        if cell != LSTM:
            to_columns(scratch.side[start:stop], scratch.gate_columns[2 * size :])
        to_columns(features[start:stop], inputs)
        input_weight = matrix(grad, trunk[INPUT_WEIGHT], num_gates, num_features)
        add_products_of_rows(scratch.gate_columns, inputs, input_weight)
        add_row_sums(scratch.gate_columns, grad[trunk[INPUT_BIAS] : trunk[INPUT_BIAS] + num_gates])


@fast_part
def _step_row_back(cell: int, size: int, r: int, by_hidden: Array, by_cell: Array, scratch: SequenceScratch) -> None:
    """Replaces the gates of one lane in one step by derivatives, and propagates the part that bypasses the weights."""
    gates, side, before = scratch.gates[r], scratch.side[r], scratch.before[r]
    if cell == LSTM:
        for j in range(size):
            enter, forget, candidate, leave = gates[j], gates[size + j], gates[2 * size + j], gates[3 * size + j]
            squashed = tanh(forget * side[j] + enter * candidate)
            by_output = scratch.by_output[r, j] + by_hidden[j]
            by_new = by_output * leave * (_ONE - squashed * squashed) + by_cell[j]
            gates[j] = by_new * candidate * enter * (_ONE - enter)
            gates[size + j] = by_new * side[j] * forget * (_ONE - forget)
            gates[2 * size + j] = by_new * enter * (_ONE - candidate * candidate)
            gates[3 * size + j] = by_output * squashed * leave * (_ONE - leave)
            by_cell[j] = by_new * forget
            by_hidden[j] = _ZERO
    else:
        for j in range(size):
            reset, update, candidate = gates[j], gates[size + j], gates[2 * size + j]
            by_output = scratch.by_output[r, j] + by_hidden[j]
            by_candidate = by_output * (_ONE - update) * (_ONE - candidate * candidate)
            gates[j] = by_candidate * side[j] * reset * (_ONE - reset)
            gates[size + j] = by_output * (before[j] - candidate) * update * (_ONE - update)
            # The state's part went through the reset gate, the inputs' part did not.
            gates[2 * size + j] = by_candidate * reset
            side[j] = by_candidate
            by_hidden[j] = by_output * update


@fast_part
def sigmoid(x: Float) -> Float:
    return _HALF + _HALF * tanh(_HALF * x)


@fast_part
def to_columns(rows: Array, columns: Array) -> None:
    """Transposes rows [R, K] to the first columns of [K, C]; all others become zero."""
    num_rows, width = rows.shape
    for start in range(0, num_rows, STRIPE):
        stop = min(start + STRIPE, num_rows)
        for k in range(width):
            for r in range(start, stop):
                columns[k, r] = rows[r, k]
    clear(columns, num_rows)


@fast_part
def _exchange(weight: Array, exchanged: Array) -> None:
    for j in range(weight.shape[0]):
        for k in range(weight.shape[1]):
            exchanged[k, j] = weight[j, k]


@fast_part
def _fill_rows(flat: Array, place: int, rows: Array) -> None:
    for r in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            rows[r, j] = flat[place + j]
