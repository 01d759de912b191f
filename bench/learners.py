"""Runs in a peer's own interpreter: trains on one task with one seed, plays, and prints the returns after RESULT.

python learners.py PEER TASK SEED
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from learning_tasks import DEFAULTS, TASKS, LearningTask

RESULT = "RESULT "
Act = Callable[[Any], Any]


def main(peer: str, task_name: str, seed: str) -> None:
    import torch

    torch.set_num_threads(1)
    task = {**TASKS, **DEFAULTS}[task_name]
    started, cpu_started = time.perf_counter(), time.process_time()
    act = {"quintain": quintain, "sb3": sb3}[peer](task, int(seed))
    row = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu_started}
    print(RESULT + json.dumps({**row, "returns": play(task, act)}), flush=True)


def play(task: LearningTask, act: Act) -> list[float]:
    """Returns what a policy collects in episodes that begin alike for everybody."""
    import gymnasium

    env = gymnasium.make(task.env_id)
    returns = []
    for episode in range(task.num_episodes):
        obs, _ = env.reset(seed=10_000 + episode)
        total, is_over = 0.0, False
        while not is_over:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total += float(reward)
            is_over = terminated or truncated
        returns.append(total)
    return returns


def quintain(task: LearningTask, seed: int) -> Act:
    from peers.quintain import ppo_settings, sac_settings

    from quintain import Trainer

    settings = {} if task.ppo is None else ppo_settings(task.ppo, task.num_envs)
    if task.sac is not None:
        settings = sac_settings(task.sac)
    if task.normalize_obs:
        settings["normalize_obs"] = True
    algorithm = "ppo" if task.sac is None else "sac"
    trainer = Trainer(algorithm, task.env_id, events=[], writers=[], seed=seed, threads=1, **settings)
    trainer.train(task.total_steps)
    return lambda obs: trainer.predict(obs)[0]


def sb3(task: LearningTask, seed: int) -> Act:
    from peers.sb3 import ppo_settings, sac_settings
    from stable_baselines3 import PPO, SAC
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    lanes: Any = make_vec_env(task.env_id, n_envs=task.num_envs, seed=seed)
    if task.normalize_obs:
        lanes = VecNormalize(lanes, norm_obs=True, norm_reward=False)
    model: Any
    if task.sac is not None:
        model = SAC("MlpPolicy", lanes, device="cpu", seed=seed, **sac_settings(task.sac))
    else:
        settings = {} if task.ppo is None else ppo_settings(task.ppo, task.num_envs)
        model = PPO("MlpPolicy", lanes, device="cpu", seed=seed, **settings)
    model.learn(task.total_steps)
    seen = lanes.normalize_obs if task.normalize_obs else (lambda obs: obs)
    return lambda obs: model.predict(seen(obs), deterministic=True)[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
