"""Products and passes through a network, for sizes that fill the unrolled loops and for all that do not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from quintain.compiled.kernels.mlp import add_product, add_products_of_rows, backward, forward, forward_rows
from quintain.compiled.kernels.tables import ACTIVATIONS

SIZES = [(1, 1, 1), (2, 4, 8), (3, 5, 7), (64, 64, 16), (1, 64, 33), (9, 2, 130), (5, 11, 64)]


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("num_outputs", "num_inputs", "num_rows"), SIZES)
def test_products_are_those_of_numpy(num_outputs: int, num_inputs: int, num_rows: int) -> None:
    weight, inputs, outputs = (
        random(num_outputs, num_inputs),
        random(num_inputs, num_rows),
        random(num_outputs, num_rows),
    )
    expected = outputs.astype(np.float64) + weight.astype(np.float64) @ inputs
    add_product(weight, inputs, outputs)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("num_outputs", "num_inputs", "num_rows"), SIZES)
def test_products_with_a_transposed_weight_are_those_of_numpy(num_outputs: int, num_inputs: int, num_rows: int) -> None:
    weight, outwards, inwards = (
        random(num_outputs, num_inputs),
        random(num_outputs, num_rows),
        random(num_inputs, num_rows),
    )
    expected = inwards.astype(np.float64) + weight.T.astype(np.float64) @ outwards
    add_product(weight.T, outwards, inwards)
    np.testing.assert_allclose(inwards, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("num_left", "num_right", "length"), SIZES)
def test_products_of_rows_are_those_of_numpy(num_left: int, num_right: int, length: int) -> None:
    left, right, sums = random(num_left, length), random(num_right, length), random(num_left, num_right)
    expected = sums.astype(np.float64) + left.astype(np.float64) @ right.T
    add_products_of_rows(left, right, sums)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)


def network(*sizes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns random flat parameters and the table of their layers, which begins behind three other parameters."""
    rows, place, unit = [], 3, 0
    for num_inputs, num_outputs in pairwise(sizes):
        rows.append((place, place + num_inputs * num_outputs, num_inputs, num_outputs, unit, unit + num_inputs))
        place, unit = place + (num_inputs + 1) * num_outputs, unit + num_inputs
    return random(place) * np.float32(0.3), np.array(rows, np.int64)


def by_torch(flat: torch.Tensor, layers: np.ndarray, activation: str, features: torch.Tensor) -> torch.Tensor:
    functions = {
        "tanh": torch.tanh,
        "relu": torch.relu,
        "elu": torch.nn.functional.elu,
        "silu": torch.nn.functional.silu,
    }
    hidden = features
    for i, (weight, bias, num_inputs, num_outputs, _, _) in enumerate(layers.tolist()):
        hidden = hidden @ flat[weight:bias].view(num_outputs, num_inputs).T + flat[bias : bias + num_outputs]
        hidden = functions[activation](hidden) if i < len(layers) - 1 else hidden
    return hidden


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", [(4, 64, 64, 2), (7, 5, 3), (3, 1), (17, 9, 9, 9, 6)], ids=str)
def test_both_ways_forwards_and_the_way_back_are_those_of_torch(activation: str, sizes: tuple[int, ...]) -> None:
    flat, layers = network(*sizes)
    features, pull = random(19, sizes[0]), random(19, sizes[-1])
    parameters = torch.from_numpy(flat.copy()).double().requires_grad_()
    expected = by_torch(parameters, layers, activation, torch.from_numpy(features).double())
    (expected * torch.from_numpy(pull)).sum().backward()

    kind, num_units = ACTIVATIONS.index(activation), sum(sizes)
    # What is returned is a part of this memory, and does not keep it.
    memory = np.empty((3, 19 * max(sizes)), np.float32)
    rows = forward_rows(flat, layers, kind, features, memory)
    np.testing.assert_allclose(rows, expected.detach(), rtol=1e-5, atol=1e-5)

    units, slopes, deltas = (np.full((num_units, 19), np.nan, np.float32) for _ in range(3))
    units[: sizes[0]] = features.T
    forward(flat, layers, kind, units, slopes)
    np.testing.assert_allclose(units[-sizes[-1] :].T, expected.detach(), rtol=1e-5, atol=1e-5)

    grad = np.zeros_like(flat)
    deltas[-sizes[-1] :] = pull.T
    backward(flat, layers, units, slopes, deltas, grad)
    assert parameters.grad is not None
    np.testing.assert_allclose(grad, parameters.grad, rtol=1e-4, atol=1e-4)
    assert not grad[:3].any()
