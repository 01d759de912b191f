"""Recursions over time-major arrays [T, N], bitwise equal to their plain forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.runtime.kernel import kernel

if TYPE_CHECKING:
    from quintain.typing import Array

_ZERO = np.float32(0.0)


def generalized_advantages(
    reward: Array,
    value: Array,
    final_value: Array,
    terminated: Array,
    done: Array,
    valid: Array,
    *,
    gamma: float,
    gae_lambda: float,
) -> Array:
    """Computes `generalized_advantages` of `algorithms.returns`, for float32."""
    contiguous = np.ascontiguousarray(reward, np.float32)
    advantage = np.empty_like(contiguous)
    _write_advantages((contiguous, value, final_value), (terminated, done, valid), (gamma, gae_lambda), advantage)
    return advantage


@kernel
def _write_advantages(
    worth: tuple[Array, Array, Array], marks: tuple[Array, Array, Array], discounts: tuple[float, float], out: Array
) -> None:
    (reward, value, final_value), (terminated, done, valid) = worth, marks
    gamma, gae_lambda = discounts
    discount, carry = np.float32(gamma), np.float32(gamma * gae_lambda)
    num_steps, num_lanes = reward.shape
    for lane in range(num_lanes):
        following = _ZERO
        for t in range(num_steps - 1, -1, -1):
            ahead = value[t + 1, lane]
            if done[t, lane]:
                ahead = _ZERO if terminated[t, lane] else final_value[t, lane]
                following = _ZERO
            delta = reward[t, lane] + discount * ahead - value[t, lane]
            following = carry * following + delta if valid[t, lane] else _ZERO
            out[t, lane] = following
