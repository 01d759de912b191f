"""Shared by the kernels of all tasks: loops over lanes, validation of actions, and draws within bounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.runtime.kernel import kernel, kernel_part
from quintain.envs.native.pcg64 import fill_uniform
from quintain.envs.native.task import TaskKernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from quintain.envs.native.task import LaneAction, Lanes, Number, Outcome, Record
    from quintain.typing import Array


def task_kernels(
    name: str,
    first_impossible: Callable[[Array], int],
    begin: Callable[[Array, int], None],
    observe: Callable[[Array, Array], None],
    move: Callable[[Array, LaneAction, Record, bool], tuple[float, bool]],
) -> TaskKernels:
    """Makes the kernels of a task from its parts.

    Parts take views of a lane's row: `begin(state, seed)`, `observe(state, obs)`, and `move(state, action, parameters,
    is_first)`, which returns the reward and whether the episode terminated.
    """

    def step(lanes: Lanes, action: Array, outcome: Outcome) -> int:
        state, age, seeds, parameters, limit = lanes
        obs, final_obs, reward, terminated, truncated = outcome
        bad: int = first_impossible(action)
        if bad >= 0:
            return -1 - bad
        num_ended = 0
        for lane in range(len(state)):
            reward[lane], terminated[lane] = move(state[lane], action[lane], parameters[lane], age[lane] == 0)
            observe(state[lane], obs[lane])
            if is_over(lane, age, limit, terminated, truncated):
                copy_row(obs[lane], final_obs[lane])
                begin(state[lane], seeds[lane])
                observe(state[lane], obs[lane])
                num_ended += 1
        return num_ended

    def start(lanes: Lanes, chosen: Array, obs: Array) -> None:
        state, age, seeds, _, _ = lanes
        for lane in range(len(state)):
            if chosen[lane]:
                age[lane] = 0
                begin(state[lane], seeds[lane])
                observe(state[lane], obs[lane])

    # By these names machine code is found again.
    step.__name__, start.__name__ = f"step_{name}", f"start_{name}"
    return TaskKernels(kernel(step), kernel(start))


@kernel_part
def first_impossible_choice(action: Array, num_choices: int) -> int:
    """Returns the first lane whose discrete action is out of range, or -1."""
    for lane in range(len(action)):
        if action[lane] < 0 or action[lane] >= num_choices:
            return lane
    return -1


@kernel_part
def first_impossible_number(action: Array) -> int:
    """Returns the first lane whose continuous action is not finite, or -1."""
    for lane in range(len(action)):
        if not np.isfinite(action[lane, 0]):
            return lane
    return -1


@kernel_part
def is_over(lane: int, age: Array, limit: int, terminated: Array, truncated: Array) -> bool:
    """Counts a step, and returns whether the lane's episode terminated or was truncated by the time limit."""
    age[lane] += 1
    truncated[lane] = age[lane] >= limit
    if terminated[lane] or truncated[lane]:
        age[lane] = 0
        return True
    return False


@kernel_part
def copy_row(source: Array, target: Array) -> None:
    """Copies element by element: an array assignment would make a temporary copy."""
    for i in range(len(source)):
        target[i] = source[i]


@kernel_part
def draw(out: Array, seed: int, low: float, high: float) -> None:
    """Fills `out` as `numpy.random.default_rng(seed).uniform(low, high)` would."""
    fill_uniform(out, seed)
    for i in range(len(out)):
        out[i] = low + (high - low) * out[i]


@kernel_part
def squared(x: Number) -> Number:
    """Returns `x**2` as numpy's scalars do: by the mathematics library, which sometimes rounds unlike `x * x`."""
    # A compiler that could see the exponent would multiply instead; it may not assume that x - x is zero.
    return math.pow(x, x - x + np.float32(2.0))
