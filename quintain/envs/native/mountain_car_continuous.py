"""MountainCarContinuous: the car in the valley with continuous actions, whose use costs.

Operations are in Gymnasium's order, so that results are bitwise equal. Gymnasium computes the first step of an episode
in double and all others in single precision, but the slope always in double; a motor at its limit is a Python float,
which takes the precision of the other operand.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.runtime.kernel import kernel_part
from quintain.envs.native.lanes import draw, first_impossible_number, task_kernels
from quintain.envs.native.task import Task, bounded

if TYPE_CHECKING:
    from quintain.envs.native.task import Record
    from quintain.typing import Array


@kernel_part
def _start(state: Array, seed: int) -> None:
    draw(state[:1], seed, -0.6, -0.4)
    state[1] = 0.0


@kernel_part
def _observe(state: Array, obs: Array) -> None:
    obs[0], obs[1] = state[0], state[1]


@kernel_part
def _move(state: Array, action: Array, p: Record, is_first: bool) -> tuple[float, bool]:
    is_there = _roll(state, action[0], p, np.float64) if is_first else _roll(state, action[0], p, np.float32)
    used = np.float64(action[0]) * np.float64(action[0])
    return (100.0 if is_there else 0.0) - used * 0.1, is_there


@kernel_part
def _roll(state: Array, wanted: np.float32, p: Record, number: type[np.float32 | np.float64]) -> bool:
    """Moves the car in the precision of `number`; `wanted` is a single."""
    position, velocity = number(state[0]), number(state[1])
    slope = 0.0025 * math.cos(np.float64(number(3.0) * position))
    velocity += number(_push(wanted, slope, p))
    if velocity > number(p.max_speed):
        velocity = number(p.max_speed)
    if velocity < number(-p.max_speed):
        velocity = number(-p.max_speed)
    position += velocity
    if position > number(p.max_position):
        position = number(p.max_position)
    if position < number(p.min_position):
        position = number(p.min_position)
    if position == number(p.min_position) and velocity < number(0.0):
        velocity = number(0.0)
    state[0], state[1] = np.float32(position), np.float32(velocity)
    return bool(position >= number(p.goal_position) and velocity >= number(p.goal_velocity))


@kernel_part
def _push(wanted: np.float32, slope: float, p: Record) -> float:
    """Returns the acceleration by motor and slope."""
    if wanted < np.float32(p.min_action):
        return float(p.min_action * p.power - slope)
    if wanted > np.float32(p.max_action):
        return float(p.max_action * p.power - slope)
    return float(wanted * np.float32(p.power) - np.float32(slope))


TASK = Task(
    obs=bounded((0.6, 0.07), (-1.2, -0.07)),
    action=bounded((1.0,)),
    state_size=2,
    parameters={
        "min_action": -1.0,
        "max_action": 1.0,
        "min_position": -1.2,
        "max_position": 0.6,
        "max_speed": 0.07,
        "goal_position": 0.45,
        "goal_velocity": 0.0,
        "power": 0.0015,
    },
    kernels=task_kernels("mountain_car_continuous", first_impossible_number, _start, _observe, _move),
    frames_per_second=30.0,
)
