"""The same lanes twice: native, and as Gymnasium's own environments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

from quintain.core.rng import Rng
from quintain.data.spec import DiscreteSpec
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.native.env import NativeEnv
from quintain.envs.settings import NativeSettings

NAMES = ["Acrobot-v1", "CartPole-v0", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
SPEEDS = {"Acrobot-v1": 5, "MountainCar-v0": 1, "MountainCarContinuous-v0": 1}
"""Which observation says which way to push, for the tasks that random pushes never solve."""


def native(name: str, num_lanes: int, seed: int = 0, first_lane: int = 0, **settings: Any) -> NativeEnv:
    chosen = NativeSettings.model_validate({"type": "native", "id": name, "num_lanes": num_lanes, **settings})
    return NativeEnv(chosen, num_lanes, Rng(seed), first_lane)


def gymnasium_lanes(name: str, num_lanes: int, seed: int = 0, **options: Any) -> LaneEnv:
    change: Callable[[Any], None] = options.pop("change", lambda env: None)
    return LaneEnv(name, [partial(_made, name, change)] * num_lanes, Rng(seed), **options)


def _made(name: str, change: Callable[[Any], None]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # CartPole-v0 is out of date, and still somebody's task
        env = gymnasium.make(name, disable_env_checker=True)
    change(env.unwrapped)
    return env


def with_attributes(**values: Any) -> Callable[[Any], None]:
    """Changes attributes, and those that Gymnasium computes of them when it makes a CartPole."""

    def change(env: Any) -> None:
        vars(env).update(values)
        if hasattr(env, "polemass_length"):
            env.total_mass, env.polemass_length = env.masspole + env.masscart, env.masspole * env.length

    return change


def actions(env: NativeEnv, name: str, generator: np.random.Generator) -> torch.Tensor:
    """Draws actions, continuous ones also beyond the bounds; half the lanes push the way they move already."""
    num_lanes = env.num_lanes
    forward = np.arange(num_lanes) % 2 == 0
    way = np.sign(env.obs[:, SPEEDS[name]]) if name in SPEEDS else np.zeros(num_lanes)
    if isinstance(env.spec.action, DiscreteSpec):
        drawn = generator.integers(0, env.spec.action.n, num_lanes)
        return torch.from_numpy(np.where(forward & (way != 0), 1 + way, drawn).astype(np.int64))
    drawn = generator.normal(0.0, 2.0, num_lanes)
    return torch.from_numpy(np.where(forward & (way != 0), way, drawn).astype(np.float32)[:, None])


def first_difference(mine: NativeEnv, theirs: LaneEnv, name: str, num_steps: int) -> tuple[str, Mapping[str, int]]:
    """Plays both; says what differed first, and how many episodes ended and how many were cut."""
    counts = {"terminated": 0, "truncated": 0}
    generator = np.random.default_rng(num_steps)
    if not _same(mine.reset(), theirs.reset()):
        return "first observation", counts
    for step in range(num_steps):
        action = actions(mine, name, generator)
        ours, reference = mine.step(action), theirs.step(action)
        ended = reference.terminated | reference.truncated
        for what in ("obs", "reward", "terminated", "truncated"):
            if not _same(getattr(ours, what), getattr(reference, what)):
                return f"{what} of step {step}", counts
        if not _same(ours.final_obs[ended], reference.final_obs[ended]):
            return f"final_obs of step {step}", counts
        counts["terminated"] += int(reference.terminated.sum())
        counts["truncated"] += int(reference.truncated.sum())
    return "", counts


def _same(ours: Any, reference: Any) -> bool:
    return bool(ours.dtype == reference.dtype and ours.tobytes() == reference.tobytes())
