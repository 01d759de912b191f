"""A multi-layer perceptron: forward for a few rows, and forward and backward for many, without allocations.

The loops are unrolled just enough for a compiler to keep loaded values in registers: each pass over a vector serves two
outputs and four inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.kernels.activations import activate
from quintain.compiled.kernels.tables import BIAS, FIRST_INPUT, FIRST_OUTPUT, NUM_INPUTS, NUM_OUTPUTS, WEIGHT
from quintain.compiled.runtime.kernel import fast_part, matrix

if TYPE_CHECKING:
    from quintain.compiled.kernels.tables import Float
    from quintain.typing import Array

_ZERO = np.float32(0.0)


@fast_part
def forward(flat: Array, layers: Array, activation: int, units: Array, slopes: Array) -> None:
    """Computes the outputs of every layer after the features in `units`, and the slopes of the hidden ones."""
    for i in range(len(layers)):
        layer = layers[i]
        add_layer(flat, layer, units)
        if i < len(layers) - 1:
            first, last = layer[FIRST_OUTPUT], layer[FIRST_OUTPUT] + layer[NUM_OUTPUTS]
            activate(activation, units[first:last], slopes[first:last])


@fast_part
def add_layer(flat: Array, layer: Array, units: Array) -> None:
    """Computes the sums of a layer, without its activation, from the units that it reads."""
    outputs = units[layer[FIRST_OUTPUT] : layer[FIRST_OUTPUT] + layer[NUM_OUTPUTS]]
    for j in range(layer[NUM_OUTPUTS]):
        bias = flat[layer[BIAS] + j]
        for r in range(units.shape[1]):
            outputs[j, r] = bias
    add_product(weight_of(flat, layer), _inputs(units, layer), outputs)


@fast_part
def forward_rows(flat: Array, layers: Array, activation: int, rows: Array, memory: Array) -> Array:
    """Returns the outputs [N, outputs] for few rows [N, features]; they stay in `memory [3, N * widest layer]`.

    For few rows the vectors run along the weights: one call is then mostly arithmetic, not loop overhead.
    """
    inputs = rows
    for i in range(len(layers)):
        layer = layers[i]
        outputs = matrix(memory[i % 2], 0, len(rows), layer[NUM_OUTPUTS])
        for n in range(len(rows)):
            for j in range(layer[NUM_OUTPUTS]):
                outputs[n, j] = flat[layer[BIAS] + j]
        add_products_of_rows(inputs, weight_of(flat, layer), outputs)
        if i < len(layers) - 1:
            activate(activation, outputs, matrix(memory[2], 0, len(rows), layer[NUM_OUTPUTS]))
        inputs = outputs
    return inputs


@fast_part
def backward(flat: Array, layers: Array, units: Array, slopes: Array, deltas: Array, grad: Array) -> None:
    """Adds the gradient of a loss to `grad`, from its derivatives by the last layer's outputs in `deltas`."""
    for i in range(len(layers) - 1, -1, -1):
        layer = layers[i]
        outwards = deltas[layer[FIRST_OUTPUT] : layer[FIRST_OUTPUT] + layer[NUM_OUTPUTS]]
        add_row_sums(outwards, grad[layer[BIAS] : layer[BIAS] + layer[NUM_OUTPUTS]])
        add_products_of_rows(outwards, _inputs(units, layer), weight_of(grad, layer))
        if i > 0:
            inwards = _inputs(deltas, layer)
            clear(inwards, 0)
            add_product(weight_of(flat, layer).T, outwards, inwards)
            scale(inwards, _inputs(slopes, layer))


@fast_part
def weight_of(flat: Array, layer: Array) -> Array:
    """Returns a layer's weight [outputs, inputs], a view."""
    weight: Array = matrix(flat, layer[WEIGHT], layer[NUM_OUTPUTS], layer[NUM_INPUTS])
    return weight


@fast_part
def _inputs(units: Array, layer: Array) -> Array:
    return units[layer[FIRST_INPUT] : layer[FIRST_INPUT] + layer[NUM_INPUTS]]


@fast_part
def add_product(weight: Array, inputs: Array, outputs: Array) -> None:
    """Adds weight [J, K] @ inputs [K, R] to outputs [J, R]."""
    num_outputs, num_inputs = weight.shape
    num_rows = inputs.shape[1]
    for j in range(0, num_outputs - 1, 2):
        for k in range(0, num_inputs - 3, 4):
            a0, a1, a2, a3 = weight[j, k], weight[j, k + 1], weight[j, k + 2], weight[j, k + 3]
            b0, b1, b2, b3 = weight[j + 1, k], weight[j + 1, k + 1], weight[j + 1, k + 2], weight[j + 1, k + 3]
            for r in range(num_rows):
                x0, x1, x2, x3 = inputs[k, r], inputs[k + 1, r], inputs[k + 2, r], inputs[k + 3, r]
                outputs[j, r] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                outputs[j + 1, r] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
        for k in range(num_inputs - num_inputs % 4, num_inputs):
            a0, b0 = weight[j, k], weight[j + 1, k]
            for r in range(num_rows):
                outputs[j, r] += a0 * inputs[k, r]
                outputs[j + 1, r] += b0 * inputs[k, r]
    for j in range(num_outputs - num_outputs % 2, num_outputs):
        for k in range(num_inputs):
            a0 = weight[j, k]
            for r in range(num_rows):
                outputs[j, r] += a0 * inputs[k, r]


@fast_part
def add_products_of_rows(left: Array, right: Array, sums: Array) -> None:
    """Adds left [J, R] @ right [K, R] transposed to sums [J, K]."""
    num_left, num_right = sums.shape
    length = left.shape[1]
    for j in range(0, num_left - 1, 2):
        for k in range(0, num_right - 3, 4):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = _ZERO
            for r in range(length):
                d, e = left[j, r], left[j + 1, r]
                x0, x1, x2, x3 = right[k, r], right[k + 1, r], right[k + 2, r], right[k + 3, r]
                a0, a1, a2, a3 = a0 + d * x0, a1 + d * x1, a2 + d * x2, a3 + d * x3
                b0, b1, b2, b3 = b0 + e * x0, b1 + e * x1, b2 + e * x2, b3 + e * x3
            sums[j, k] += a0
            sums[j, k + 1] += a1
            sums[j, k + 2] += a2
            sums[j, k + 3] += a3
            sums[j + 1, k] += b0
            sums[j + 1, k + 1] += b1
            sums[j + 1, k + 2] += b2
            sums[j + 1, k + 3] += b3
        for k in range(num_right - num_right % 4, num_right):
            sums[j, k] += _dot(left, j, right, k)
            sums[j + 1, k] += _dot(left, j + 1, right, k)
    for j in range(num_left - num_left % 2, num_left):
        for k in range(num_right):
            sums[j, k] += _dot(left, j, right, k)


@fast_part
def _dot(a: Array, j: int, b: Array, k: int) -> Float:
    total = _ZERO
    for r in range(a.shape[1]):
        total += a[j, r] * b[k, r]
    return total


@fast_part
def clear(values: Array, first_row: int) -> None:
    """Sets all columns from `first_row` on to zero."""
    for j in range(values.shape[0]):
        for r in range(first_row, values.shape[1]):
            values[j, r] = _ZERO


@fast_part
def scale(values: Array, factors: Array) -> None:
    for j in range(values.shape[0]):
        for r in range(values.shape[1]):
            values[j, r] *= factors[j, r]


@fast_part
def add_row_sums(outwards: Array, grad: Array) -> None:
    for j in range(len(grad)):
        total = _ZERO
        for r in range(outwards.shape[1]):
            total += outwards[j, r]
        grad[j] += total
