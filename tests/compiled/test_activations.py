"""The cheap tanh is tanh, and every activation made from it is the one torch has, with its derivative."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from quintain.compiled.kernels.activations import activate, tanh
from quintain.compiled.kernels.tables import ACTIVATIONS

FUNCTIONS = {"tanh": torch.tanh, "relu": torch.relu, "elu": functional.elu, "silu": functional.silu}


def everywhere() -> np.ndarray:
    """Returns numbers around zero, over the whole bend, and far beyond it."""
    fine = np.linspace(-12.0, 12.0, 48_001)
    return np.concatenate((fine, fine * 1e-4, [-1e30, -100.0, 100.0, 1e30])).astype(np.float32)


def test_tanh_is_within_a_millionth_everywhere() -> None:
    x = everywhere()
    found = np.array([tanh(value) for value in x[::7]])
    assert np.abs(found - np.tanh(x[::7].astype(np.float64))).max() < 1e-6


def test_tanh_keeps_its_digits_near_zero() -> None:
    x = np.float32(1e-3) * np.arange(1, 400, dtype=np.float32)
    found = np.array([tanh(value) for value in x])
    assert (np.abs(found / np.tanh(x.astype(np.float64)) - 1.0)).max() < 5e-7


def test_tanh_does_not_hide_what_is_not_a_number() -> None:
    assert np.isnan(tanh(np.float32(np.nan)))
    assert [float(tanh(np.float32(x))) for x in (np.inf, -np.inf)] == pytest.approx([1.0, -1.0], abs=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_slopes_are_those_of_torch(name: str) -> None:
    values = np.clip(everywhere(), -50.0, 50.0)[None]
    x = torch.from_numpy(values.copy()).double().requires_grad_()
    expected = FUNCTIONS[name](x)
    expected.sum().backward()
    slopes = np.empty_like(values)
    activate(ACTIVATIONS.index(name), values, slopes)
    assert x.grad is not None
    # silu multiplies by x what tanh is off by, so an error is small beside x.
    size = 1.0 + x.detach().abs().numpy()
    assert (np.abs(values - expected.detach().numpy()) / size).max() < 5e-7
    assert (np.abs(slopes - x.grad.numpy()) / size).max() < 1e-6


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_activation_hides_what_is_not_a_number(name: str) -> None:
    values, slopes = np.full((1, 20), np.nan, np.float32), np.zeros((1, 20), np.float32)
    activate(ACTIVATIONS.index(name), values, slopes)
    assert np.isnan(values).all()
