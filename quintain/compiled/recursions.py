"""Recursions over time-major arrays [T, N], with the same numbers to the last bit as their plain forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.compiled.cache import kernel

if TYPE_CHECKING:
    from quintain.typing import Array

_ZERO = np.float32(0.0)


@kernel
def generalized_advantages(
    reward: Array, value: Array, final_value: Array, ends: Any, gamma: float, gae_lambda: float
) -> Array:
    """Returns what `algorithms.returns.generalized_advantages` does; `ends` is (terminated, done, valid)."""
    terminated, done, valid = ends
    discount, carry = np.float32(gamma), np.float32(gamma * gae_lambda)
    advantage = np.empty_like(reward)
    num_steps, num_lanes = reward.shape
    following = np.zeros(num_lanes, np.float32)
    for t in range(num_steps - 1, -1, -1):
        for lane in range(num_lanes):
            if not valid[t, lane]:
                following[lane] = _ZERO
            else:
                ahead = value[t + 1, lane]
                if done[t, lane]:
                    ahead = _ZERO if terminated[t, lane] else final_value[t, lane]
                    following[lane] = _ZERO
                delta = reward[t, lane] + discount * ahead - value[t, lane]
                following[lane] = carry * following[lane] + delta
            advantage[t, lane] = following[lane]
    return advantage
