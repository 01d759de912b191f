"""MountainCar: drive an underpowered car out of a valley by swinging back and forth (Moore, 1990).

Operations are in Gymnasium's order, so that results are bitwise equal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from quintain.compiled.runtime.kernel import kernel_part
from quintain.data.spec import discrete
from quintain.envs.native.lanes import draw, first_impossible_choice, task_kernels
from quintain.envs.native.task import Task, bounded

if TYPE_CHECKING:
    from quintain.envs.native.task import Record
    from quintain.typing import Array


@kernel_part
def _first_impossible(action: Array) -> int:
    return first_impossible_choice(action, 3)


@kernel_part
def _start(state: Array, seed: int) -> None:
    draw(state[:1], seed, -0.6, -0.4)
    state[1] = 0.0


@kernel_part
def _observe(state: Array, obs: Array) -> None:
    obs[0], obs[1] = state[0], state[1]


@kernel_part
def _move(state: Array, action: int, p: Record, _: bool) -> tuple[float, bool]:
    position, velocity = state[0], state[1]
    velocity += (action - 1) * p.force + math.cos(3 * position) * (-p.gravity)
    velocity = min(max(velocity, -p.max_speed), p.max_speed)
    position = min(max(position + velocity, p.min_position), p.max_position)
    if position == p.min_position and velocity < 0:
        velocity = 0.0
    state[0], state[1] = position, velocity
    return -1.0, position >= p.goal_position and velocity >= p.goal_velocity


TASK = Task(
    obs=bounded((0.6, 0.07), (-1.2, -0.07)),
    action=discrete(3),
    state_size=2,
    parameters={
        "min_position": -1.2,
        "max_position": 0.6,
        "max_speed": 0.07,
        "goal_position": 0.5,
        "goal_velocity": 0.0,
        "force": 0.001,
        "gravity": 0.0025,
    },
    kernels=task_kernels("mountain_car", _first_impossible, _start, _observe, _move),
    frames_per_second=30.0,
)
