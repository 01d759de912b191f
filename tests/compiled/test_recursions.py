"""The compiled recursion gives the bits of the plain one, whatever ends where."""

from __future__ import annotations

import numpy as np
import pytest

from quintain.algorithms import returns
from quintain.compiled.kernels import recursions


@pytest.mark.parametrize("num_lanes", [1, 8, 65])
def test_advantages_have_the_same_bits(num_lanes: int) -> None:
    draw = np.random.default_rng(num_lanes)
    shape = (33, num_lanes)
    reward, final_value = (draw.standard_normal(shape).astype(np.float32) for _ in range(2))
    value = draw.standard_normal((34, num_lanes)).astype(np.float32)
    terminated, truncated = (draw.random(shape) < 0.1 for _ in range(2))
    given = reward, value, final_value, terminated, terminated | truncated, draw.random(shape) < 0.9
    plain, compiled = (
        module.generalized_advantages(*given, gamma=0.99, gae_lambda=0.95) for module in (returns, recursions)
    )
    assert np.array_equal(plain, compiled)
    assert len(np.unique(plain)) > plain.size // 2
