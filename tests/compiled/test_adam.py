"""Clipping and Adam by the kernel are torch's own, and a gradient that is not finite moves nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from quintain.compiled.kernels.adam import Rates, step_adam


@pytest.mark.parametrize("max_grad_norm", [0.5, 1e6, math.inf])
def test_steps_are_those_of_torch(max_grad_norm: float) -> None:
    generator = np.random.default_rng(0)
    flat = generator.standard_normal(37).astype(np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(flat.copy()).double())
    reference = torch.optim.Adam([parameter], lr=0.01, betas=(0.9, 0.999), eps=1e-5)
    moments, num_steps = np.zeros((2, 37), np.float32), np.zeros(1, np.float32)
    for _ in range(20):
        grad = generator.standard_normal(37).astype(np.float32)
        parameter.grad = torch.from_numpy(grad.copy()).double()
        expected = torch.nn.utils.clip_grad_norm_([parameter], max_grad_norm)
        reference.step()
        found = step_adam(flat, grad, moments[0], moments[1], num_steps, Rates(0.01, 0.9, 0.999, 1e-5, max_grad_norm))
        assert found == pytest.approx(float(expected), rel=1e-6)
    assert num_steps[0] == 20
    np.testing.assert_allclose(flat, parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_moves_nothing(bad: float) -> None:
    flat, grad = np.ones(5, np.float32), np.array([1.0, bad, 0.0, 0.0, 0.0], np.float32)
    moments, num_steps = np.full((2, 5), 0.5, np.float32), np.full(1, 7.0, np.float32)
    assert not math.isfinite(
        step_adam(flat, grad, moments[0], moments[1], num_steps, Rates(0.1, 0.9, 0.999, 1e-5, 0.5))
    )
    assert (flat == 1.0).all()
    assert (moments == 0.5).all()
    assert num_steps[0] == 7.0


def test_moments_of_a_weight_without_gradient_fade_to_zero_and_not_to_subnormal_numbers() -> None:
    flat, grad = np.ones(4, np.float32), np.array([1.0, 1e-3, 1e-20, 0.0], np.float32)
    moments, num_steps = np.zeros((2, 4), np.float32), np.zeros(1, np.float32)
    rates = Rates(1e-3, 0.9, 0.999, 1e-8, math.inf)
    for step in range(1000):
        step_adam(flat, grad if step == 0 else np.zeros(4, np.float32), moments[0], moments[1], num_steps, rates)
    # 0.1 * 0.9^999 = 2e-47 is below every float32; 0.001 * 0.999^999 is not.
    assert moments[0].tolist() == [0.0] * 4
    assert moments[1, :2] == pytest.approx([1e-3 * 0.999**999, 1e-9 * 0.999**999], rel=1e-4)
    assert flat[3] == 1.0
