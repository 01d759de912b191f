"""Pendulum: swing a pendulum up and hold it there, with little torque.

Operations stand in the order in which Gymnasium has them, so that every number is the same to the last bit.
A torque is a single, and what is computed of it alone is one too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.compiled.kernel import kernel, kernel_part
from quintain.envs.native.lanes import copy_row, first_impossible_number, is_over, squared
from quintain.envs.native.pcg64 import fill_uniform
from quintain.envs.native.task import Task, bounded

if TYPE_CHECKING:
    from quintain.envs.native.task import Lanes, Outcome
    from quintain.typing import Array


@kernel_part
def _start(state: Array, seed: int) -> None:
    fill_uniform(state, seed)
    state[0], state[1] = -math.pi + (math.pi + math.pi) * state[0], -1.0 + 2.0 * state[1]


@kernel_part
def _observe(state: Array, obs: Array) -> None:
    obs[0], obs[1], obs[2] = math.cos(state[0]), math.sin(state[0]), state[1]


@kernel_part
def _move(state: Array, action: Array, p: Any) -> tuple[float, bool]:
    angle, speed = state[0], state[1]
    torque = min(max(action[0], np.float32(-p.max_torque)), np.float32(p.max_torque))
    from_top = (angle + math.pi) % (2 * math.pi) - math.pi
    cost = squared(from_top) + 0.1 * squared(speed) + np.float32(0.001) * squared(torque)
    lever = np.float32(3.0 / (p.m * squared(p.l)))
    speed = speed + (3 * p.g / (2 * p.l) * math.sin(angle) + lever * torque) * p.dt
    speed = min(max(speed, -p.max_speed), p.max_speed)
    state[0], state[1] = angle + speed * p.dt, speed
    return -cost, False


@kernel
def step(lanes: Lanes, action: Array, outcome: Outcome) -> int:
    """Steps every lane and starts those anew that ended; returns how many did, or -1 - lane of a bad action."""
    state, age, seeds, parameters, limit = lanes
    obs, final_obs, reward, terminated, truncated = outcome
    bad = first_impossible_number(action)
    if bad >= 0:
        return -1 - bad
    num_ended = 0
    for lane in range(len(state)):
        reward[lane], terminated[lane] = _move(state[lane], action[lane], parameters[lane])
        _observe(state[lane], obs[lane])
        if is_over(lane, age, limit, terminated, truncated):
            copy_row(obs[lane], final_obs[lane])
            _start(state[lane], seeds[lane])
            _observe(state[lane], obs[lane])
            num_ended += 1
    return num_ended


@kernel
def start(lanes: Lanes, chosen: Array, obs: Array) -> None:
    """Starts an episode in the chosen lanes."""
    state, age, seeds, _, _ = lanes
    for lane in range(len(state)):
        if chosen[lane]:
            age[lane] = 0
            _start(state[lane], seeds[lane])
            _observe(state[lane], obs[lane])


TASK = Task(
    obs=bounded((1.0, 1.0, 8.0)),
    action=bounded((2.0,)),
    state_size=2,
    parameters={"max_speed": 8.0, "max_torque": 2.0, "dt": 0.05, "g": 10.0, "m": 1.0, "l": 1.0},
    step=step,
    start=start,
    frames_per_second=30.0,
)
