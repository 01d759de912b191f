"""CartPole: keep a pole upright on a cart that is pushed left or right (Barto, Sutton and Anderson, 1983).

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
    return first_impossible_choice(action, 2)


@kernel_part
def _start(state: Array, seed: int) -> None:
    draw(state, seed, -0.05, 0.05)


@kernel_part
def _observe(state: Array, obs: Array) -> None:
    for i in range(4):
        obs[i] = state[i]


@kernel_part
def _move(state: Array, action: int, p: Record, _: bool) -> tuple[float, bool]:
    total_mass, polemass_length = p.masspole + p.masscart, p.masspole * p.length
    x, x_dot, theta, theta_dot = state[0], state[1], state[2], state[3]
    force = p.force_mag if action == 1 else -p.force_mag
    costheta, sintheta = math.cos(theta), math.sin(theta)
    push = (force + polemass_length * (theta_dot * theta_dot) * sintheta) / total_mass
    theta_acc = (p.gravity * sintheta - costheta * push) / (
        p.length * (4.0 / 3.0 - p.masspole * (costheta * costheta) / total_mass)
    )
    x_acc = push - polemass_length * theta_acc * costheta / total_mass
    if p.kinematics_integrator == 0.0:
        x, theta = x + p.tau * x_dot, theta + p.tau * theta_dot
        x_dot, theta_dot = x_dot + p.tau * x_acc, theta_dot + p.tau * theta_acc
    else:
        x_dot, theta_dot = x_dot + p.tau * x_acc, theta_dot + p.tau * theta_acc
        x, theta = x + p.tau * x_dot, theta + p.tau * theta_dot
    state[0], state[1], state[2], state[3] = x, x_dot, theta, theta_dot
    has_fallen = abs(x) > p.x_threshold or abs(theta) > p.theta_threshold_radians
    if p.sutton_barto_reward:
        return (-1.0 if has_fallen else 0.0), has_fallen
    return 1.0, has_fallen


_THETA_THRESHOLD = 12 * 2 * math.pi / 360
_HIGH = (4.8, math.inf, 2 * _THETA_THRESHOLD, math.inf)
TASK = Task(
    obs=bounded(_HIGH),
    action=discrete(2),
    state_size=4,
    parameters={
        "gravity": 9.8,
        "masscart": 1.0,
        "masspole": 0.1,
        "length": 0.5,
        "force_mag": 10.0,
        "tau": 0.02,
        "kinematics_integrator": ("euler", "semi-implicit euler"),
        "theta_threshold_radians": _THETA_THRESHOLD,
        "x_threshold": 2.4,
        "sutton_barto_reward": False,
    },
    kernels=task_kernels("cartpole", _first_impossible, _start, _observe, _move),
    frames_per_second=50.0,
)
