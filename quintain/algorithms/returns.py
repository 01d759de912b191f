"""Advantage estimates, as plain recursions over time-major arrays [T, N]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from quintain.typing import Array


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
    """Returns advantages [T, N] (Schulman et al. 2016, eq. 16) with correct bootstraps at truncations.

    delta_t = r_t + gamma * B_t - V_t, where B_t is 0 after a termination, the value of the episode's own last
    observation after a truncation, and V_{t+1} otherwise; terminated wins when both are set. The recursion stops at
    every done. `value` is [T+1, N]; a step that only reset its lane (valid is False) gets 0 and passes nothing on.
    """
    num_steps = len(reward)
    bootstrap = np.where(done, np.where(terminated, np.float32(0.0), final_value), value[1:])
    delta = reward + np.float32(gamma) * bootstrap - value[:-1]
    delta *= valid
    carry = np.float32(gamma * gae_lambda) * ~(done | ~valid)
    advantage = np.empty_like(delta)
    following = np.zeros_like(delta[0])
    for t in range(num_steps - 1, -1, -1):
        following = np.multiply(carry[t], following, out=advantage[t])
        following += delta[t]
    return advantage


def explained_variance(predicted: Array, target: Array) -> float:
    """Returns 1 - Var[target - predicted] / Var[target]: 1 is perfect, 0 is no better than the mean.

    Of several columns both variances are sums, so that one which is always right does not make up for the others.
    """
    variance = float(np.var(target, axis=0).sum())
    return float("nan") if variance == 0.0 else 1.0 - float(np.var(target - predicted, axis=0).sum()) / variance
