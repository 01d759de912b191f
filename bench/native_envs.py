"""Compares native classic-control environments with Gymnasium's, alone, without any learning: steps per second.

python bench/native_envs.py [NAME ...]

Every contender uses one thread, so its own processor time counts and other programs on the machine hardly disturb it.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from quintain.core.rng import Rng
from quintain.runs.assemble import env_maker
from quintain.settings.tree import RunFile

NAMES = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
LANES = (1, 8, 64, 1024, 4096)
ROUNDS, SECONDS = 5, 0.3
Step = Callable[[int], Any]


def native(name: str, num_lanes: int, actions: list[torch.Tensor]) -> Step:
    env = env_maker(RunFile.from_names("ppo", f"native/{name}"))(num_lanes, Rng(0))
    env.reset()
    return lambda i: env.step(actions[i])


def lanes(name: str, num_lanes: int, actions: list[torch.Tensor]) -> Step:
    env = env_maker(RunFile.from_names("ppo", name))(num_lanes, Rng(0))
    env.reset()
    return lambda i: env.step(actions[i])


def sync_vector(name: str, num_lanes: int, actions: list[torch.Tensor]) -> Step:
    return _vector(name, num_lanes, actions, "sync")


def vector_entry_point(name: str, num_lanes: int, actions: list[torch.Tensor]) -> Step:
    return _vector(name, num_lanes, actions, "vector_entry_point")


def _vector(name: str, num_lanes: int, actions: list[torch.Tensor], mode: str) -> Step:
    env = gymnasium.make_vec(name, num_lanes, vectorization_mode=mode)
    env.reset(seed=0)
    rows = [action.numpy() for action in actions]
    return lambda i: env.step(rows[i])


def rate(step: Step, num_lanes: int, num_actions: int) -> float:
    """Returns steps of single lanes per second of processor time."""
    count, started = 0, time.process_time()
    while (elapsed := time.process_time() - started) < SECONDS:
        for _ in range(max(1, 256 // num_lanes)):
            step(count % num_actions)
            count += 1
    return count * num_lanes / elapsed


def contenders(name: str, num_lanes: int) -> dict[str, Step]:
    generator = np.random.default_rng(0)
    space = gymnasium.make(name).action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        drawn = [generator.integers(0, space.n, num_lanes) for _ in range(64)]
    else:
        drawn = [generator.uniform(-1.0, 1.0, (num_lanes, 1)).astype(np.float32) for _ in range(64)]
    actions = [torch.from_numpy(rows) for rows in drawn]
    made = {"native": native(name, num_lanes, actions)}
    if num_lanes <= 64:
        made["gym, one per lane"] = lanes(name, num_lanes, actions)
        made["SyncVectorEnv"] = sync_vector(name, num_lanes, actions)
    if gymnasium.spec(name).vector_entry_point is not None:
        made["vector entry point"] = vector_entry_point(name, num_lanes, actions)
    return made


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    columns = ("native", "gym, one per lane", "SyncVectorEnv", "vector entry point")
    print("| task | lanes |", " | ".join(columns), "|\n|---|---|" + "---|" * len(columns))
    for name in names or NAMES:
        for num_lanes in LANES:
            made = contenders(name, num_lanes)
            found: dict[str, list[float]] = {column: [] for column in made}
            for _ in range(ROUNDS):
                for column, step in made.items():
                    found[column].append(rate(step, num_lanes, 64))
            cells = [f"{statistics.median(found[c]):,.0f}" if c in found else "-" for c in columns]
            print(f"| {name} | {num_lanes} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
