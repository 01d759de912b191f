"""Acrobot: swing the end of a chain of two links above a line, with a motor between the links (Sutton, 1996).

Operations are in Gymnasium's order, so that results are bitwise equal. The first observation of an episode is computed
by numpy: Gymnasium takes sines and cosines of singles there, for which numpy has its own functions that no mathematics
library reproduces bitwise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from quintain.compiled.runtime.kernel import kernel_part
from quintain.data.spec import discrete
from quintain.envs.native.lanes import draw, first_impossible_choice, squared, task_kernels
from quintain.envs.native.task import Task, bounded

if TYPE_CHECKING:
    from quintain.envs.native.task import Record
    from quintain.typing import Array


@kernel_part
def _first_impossible(action: Array) -> int:
    return first_impossible_choice(action, 3)


@kernel_part
def _start(state: Array, seed: int) -> None:
    draw(state, seed, -0.1, 0.1)
    for i in range(4):
        state[i] = np.float32(state[i])


@kernel_part
def _observe(state: Array, obs: Array) -> None:
    obs[0], obs[1] = math.cos(state[0]), math.sin(state[0])
    obs[2], obs[3] = math.cos(state[1]), math.sin(state[1])
    obs[4], obs[5] = state[2], state[3]


def _first_obs(state: Array) -> Array:
    first, second = state[:, 0].astype(np.float32), state[:, 1].astype(np.float32)
    waves = (np.cos(first), np.sin(first), np.cos(second), np.sin(second))
    return np.stack((*waves, state[:, 2].astype(np.float32), state[:, 3].astype(np.float32)), axis=1)


@kernel_part
def _move(state: Array, action: int, p: Record, _: bool) -> tuple[float, bool]:
    """Moves both links by one Runge-Kutta step of fourth order."""
    torque, half = action - 1.0, p.dt / 2.0
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    a0, a1, a2, a3 = _slope(s0, s1, s2, s3, torque, p)
    b0, b1, b2, b3 = _slope(s0 + half * a0, s1 + half * a1, s2 + half * a2, s3 + half * a3, torque, p)
    c0, c1, c2, c3 = _slope(s0 + half * b0, s1 + half * b1, s2 + half * b2, s3 + half * b3, torque, p)
    d0, d1, d2, d3 = _slope(s0 + p.dt * c0, s1 + p.dt * c1, s2 + p.dt * c2, s3 + p.dt * c3, torque, p)
    sixth = p.dt / 6.0
    state[0] = _wrapped(s0 + sixth * (a0 + 2 * b0 + 2 * c0 + d0))
    state[1] = _wrapped(s1 + sixth * (a1 + 2 * b1 + 2 * c1 + d1))
    state[2] = min(max(s2 + sixth * (a2 + 2 * b2 + 2 * c2 + d2), -p.MAX_VEL_1), p.MAX_VEL_1)
    state[3] = min(max(s3 + sixth * (a3 + 2 * b3 + 2 * c3 + d3), -p.MAX_VEL_2), p.MAX_VEL_2)
    is_up = -math.cos(state[0]) - math.cos(state[1] + state[0]) > 1.0
    return (0.0 if is_up else -1.0), is_up


@kernel_part
def _slope(
    angle1: float, angle2: float, speed1: float, speed2: float, torque: float, p: Record
) -> tuple[float, float, float, float]:
    """Returns the derivatives of both angles and both velocities."""
    m1, m2, l1, lc1, lc2, moi = (
        p.LINK_MASS_1,
        p.LINK_MASS_2,
        p.LINK_LENGTH_1,
        p.LINK_COM_POS_1,
        p.LINK_COM_POS_2,
        p.LINK_MOI,
    )
    cosine, sine = math.cos(angle2), math.sin(angle2)
    d1 = m1 * squared(lc1) + m2 * (squared(l1) + squared(lc2) + 2 * l1 * lc2 * cosine) + moi + moi
    d2 = m2 * (squared(lc2) + l1 * lc2 * cosine) + moi
    phi2 = m2 * lc2 * 9.8 * math.cos(angle1 + angle2 - math.pi / 2.0)
    phi1 = (
        -m2 * l1 * lc2 * squared(speed2) * sine
        - 2 * m2 * l1 * lc2 * speed2 * speed1 * sine
        + (m1 * lc1 + m2 * l1) * 9.8 * math.cos(angle1 - math.pi / 2)
        + phi2
    )
    inertia = m2 * squared(lc2) + moi - squared(d2) / d1
    if p.book_or_nips == 0.0:
        acceleration2 = (torque + d2 / d1 * phi1 - m2 * l1 * lc2 * squared(speed1) * sine - phi2) / inertia
    else:
        acceleration2 = (torque + d2 / d1 * phi1 - phi2) / inertia
    return speed1, speed2, -(d2 * acceleration2 + phi1) / d1, acceleration2


@kernel_part
def _wrapped(angle: float) -> float:
    turn = math.pi - -math.pi
    while angle > math.pi:
        angle -= turn
    while angle < -math.pi:
        angle += turn
    return angle


TASK = Task(
    obs=bounded((1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi)),
    action=discrete(3),
    state_size=4,
    parameters={
        "dt": 0.2,
        "LINK_LENGTH_1": 1.0,
        "LINK_MASS_1": 1.0,
        "LINK_MASS_2": 1.0,
        "LINK_COM_POS_1": 0.5,
        "LINK_COM_POS_2": 0.5,
        "LINK_MOI": 1.0,
        "MAX_VEL_1": 4 * math.pi,
        "MAX_VEL_2": 9 * math.pi,
        "book_or_nips": ("book", "nips"),
    },
    kernels=task_kernels("acrobot", _first_impossible, _start, _observe, _move),
    frames_per_second=15.0,
    first_obs=_first_obs,
)
