"""Compiled convolutions of small images, for acting: one image at a time, each layer a product with its patches.

The formulas are those of `policies/encoders.py`. For 20 by 20 pixels, torch's overhead exceeds the arithmetic. Every
image is processed separately, so that its features do not depend on the batch size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.kernels.mlp import add_products_of_rows
from quintain.compiled.kernels.tables import (
    CHANNELS,
    FILTER_BIAS,
    FILTER_HEIGHT,
    FILTER_WEIGHT,
    FILTER_WIDTH,
    HEIGHT,
    NUM_FILTERS,
    STRIDE,
    WIDTH,
)
from quintain.compiled.runtime.kernel import fast_kernel, fast_part, matrix

if TYPE_CHECKING:
    from quintain.typing import Array

_ZERO, _SLOPE = np.float32(0.0), np.float32(0.01)


@fast_kernel
def see(layers: Array, flat: Array, pixels: Array, scale: float, features: Array, scratch: Array) -> None:
    """Writes the features [N, F] of images [N, C, H, W], which may be views with any strides.

    `scratch [3, widest]` holds the inputs of a layer, its patches, and its outputs.
    """
    inputs, factor = scratch[0], np.float32(scale)
    num_images, channels, height, width = pixels.shape
    for n in range(num_images):
        for c in range(channels):
            for y in range(height):
                for x in range(width):
                    inputs[(c * height + y) * width + x] = np.float32(pixels[n, c, y, x]) * factor
        for i in range(len(layers)):
            _convolve(layers[i], flat, inputs, scratch)
        for k in range(features.shape[1]):
            features[n, k] = inputs[k]


@fast_part
def _convolve(layer: Array, flat: Array, inputs: Array, scratch: Array) -> None:
    """Writes the leaky ReLU outputs [filters, rows, columns] of a layer over its inputs [channels, height, width]."""
    channels, height, width = layer[CHANNELS], layer[HEIGHT], layer[WIDTH]
    filter_height, filter_width, stride = layer[FILTER_HEIGHT], layer[FILTER_WIDTH], layer[STRIDE]
    num_rows, num_columns = (height - filter_height) // stride + 1, (width - filter_width) // stride + 1
    num_patches, num_filters, size = num_rows * num_columns, layer[NUM_FILTERS], channels * filter_height * filter_width
    patches = matrix(scratch[1], 0, num_patches, size)
    outputs = matrix(scratch[2], 0, num_patches, num_filters)
    for row in range(num_rows):
        for column in range(num_columns):
            patch, place = row * num_columns + column, 0
            for c in range(channels):
                for y in range(filter_height):
                    start = (c * height + row * stride + y) * width + column * stride
                    for x in range(filter_width):
                        patches[patch, place + x] = inputs[start + x]
                    place += filter_width
    for patch in range(num_patches):
        for j in range(num_filters):
            outputs[patch, j] = flat[layer[FILTER_BIAS] + j]
    add_products_of_rows(patches, matrix(flat, layer[FILTER_WEIGHT], num_filters, size), outputs)
    for patch in range(num_patches):
        for j in range(num_filters):
            value = outputs[patch, j]
            inputs[j * num_patches + patch] = value if value > _ZERO else value * _SLOPE
