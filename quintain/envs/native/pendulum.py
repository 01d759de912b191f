"""Pendulum: swing a pendulum up and hold it there, with little torque.

Operations are in Gymnasium's order, so that results are bitwise equal. A torque is a single, and so is every value
computed from it alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.runtime.kernel import kernel_part
from quintain.envs.native.lanes import first_impossible_number, squared, task_kernels
from quintain.envs.native.pcg64 import fill_uniform
from quintain.envs.native.task import Task, bounded

if TYPE_CHECKING:
    from quintain.envs.native.task import Record
    from quintain.typing import Array


@kernel_part
def _start(state: Array, seed: int) -> None:
    fill_uniform(state, seed)
    state[0], state[1] = -math.pi + (math.pi + math.pi) * state[0], -1.0 + 2.0 * state[1]


@kernel_part
def _observe(state: Array, obs: Array) -> None:
    obs[0], obs[1], obs[2] = math.cos(state[0]), math.sin(state[0]), state[1]


@kernel_part
def _move(state: Array, action: Array, p: Record, _: bool) -> tuple[float, bool]:
    angle, speed = state[0], state[1]
    torque = min(max(action[0], np.float32(-p.max_torque)), np.float32(p.max_torque))
    from_top = (angle + math.pi) % (2 * math.pi) - math.pi
    cost = squared(from_top) + 0.1 * squared(speed) + np.float32(0.001) * squared(torque)
    lever = np.float32(3.0 / (p.m * squared(p.l)))
    speed = speed + (3 * p.g / (2 * p.l) * math.sin(angle) + lever * torque) * p.dt
    speed = min(max(speed, -p.max_speed), p.max_speed)
    state[0], state[1] = angle + speed * p.dt, speed
    return -cost, False


TASK = Task(
    obs=bounded((1.0, 1.0, 8.0)),
    action=bounded((2.0,)),
    state_size=2,
    parameters={"max_speed": 8.0, "max_torque": 2.0, "dt": 0.05, "g": 10.0, "m": 1.0, "l": 1.0},
    kernels=task_kernels("pendulum", first_impossible_number, _start, _observe, _move),
    frames_per_second=30.0,
)
