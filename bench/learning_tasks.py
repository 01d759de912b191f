"""Tasks that are learned beside Stable-Baselines3: the same number of steps and seeds on both sides.

Those of TASKS have the same settings on both sides, those of DEFAULTS each library's own defaults. Steps, seeds and
episodes are chosen here and committed before the first run of a task. Needs nothing but Python, because it is read
inside every peer's interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workloads import PPO, SAC, WORKLOADS


@dataclass(frozen=True)
class LearningTask:
    """One row of the report."""

    name: str
    title: str
    env_id: str
    total_steps: int
    num_envs: int = 1
    ppo: PPO | None = None
    sac: SAC | None = None
    normalize_obs: bool = False
    by_defaults: bool = False
    """PPO with no settings at all but the seed and the number of steps, in place of `ppo` or `sac`."""
    num_episodes: int = 100
    """How many episodes the policy plays after training, without exploring."""
    num_seeds: int = 10
    """Seeds 0, 1, ... of each side: 10, or 5 where a run takes more than five CPU minutes."""
    numbers: str = "whole-kernels"
    """Names the code of quintain that a score depends on. It gets a new name when a change makes new numbers for the
    task; rows with another name are kept as earlier versions, and the task is run again."""


_SWING_UP = PPO(
    num_steps=256,
    num_epochs=10,
    num_minibatches=8,
    learning_rate=1e-3,
    entropy_coef=0.0,
    gamma=0.9,
    is_annealed=True,
)
_RUN = replace(_SWING_UP, learning_rate=3e-4, gamma=0.99, is_annealed=False)
_HIGHER = PPO(learning_rate=1e-3, is_annealed=True)

TASKS = {
    task.name: task
    for task in (
        LearningTask(
            "ppo-cartpole",
            "PPO, CartPole-v1, rl-zoo's settings",
            "CartPole-v1",
            100_000,
            num_envs=8,
            ppo=WORKLOADS["solve_cartpole"].ppo,
        ),
        LearningTask("ppo-acrobot", "PPO, Acrobot-v1", "Acrobot-v1", 150_000, num_envs=8, ppo=_HIGHER),
        LearningTask("ppo-pendulum", "PPO, Pendulum-v1", "Pendulum-v1", 200_000, num_envs=8, ppo=_SWING_UP),
        LearningTask(
            "ppo-pendulum-normalized",
            "PPO, Pendulum-v1, observations normalised",
            "Pendulum-v1",
            200_000,
            num_envs=8,
            ppo=_SWING_UP,
            normalize_obs=True,
            numbers="folded-normalizer",
        ),
        LearningTask(
            "ppo-halfcheetah",
            "PPO, HalfCheetah-v5, observations normalised",
            "HalfCheetah-v5",
            1_000_000,
            num_envs=8,
            ppo=_RUN,
            normalize_obs=True,
            num_episodes=20,
            numbers="folded-normalizer",
        ),
        LearningTask(
            "sac-pendulum",
            "SAC, Pendulum-v1, networks of 2x64",
            "Pendulum-v1",
            20_000,
            sac=SAC(learning_rate=1e-3, hidden_sizes=(64, 64)),
            numbers="small-uniform-weights",
        ),
        LearningTask(
            "sac-halfcheetah",
            "SAC, HalfCheetah-v5",
            "HalfCheetah-v5",
            50_000,
            sac=SAC(),
            num_episodes=20,
            num_seeds=5,
            numbers="small-uniform-weights",
        ),
    )
}


def _by_defaults(env_id: str, total_steps: int, num_seeds: int) -> LearningTask:
    name = f"defaults-{env_id.partition('-')[0].lower()}"
    numbers = "ppo-defaults-2"
    return LearningTask(
        name, env_id, env_id, total_steps, by_defaults=True, num_episodes=30, num_seeds=num_seeds, numbers=numbers
    )


DEFAULTS = {
    task.name: task
    for task in (
        _by_defaults("LunarLander-v3", 400_000, 5),
        _by_defaults("CartPole-v1", 50_000, 10),
        _by_defaults("MountainCarContinuous-v0", 50_000, 10),
        _by_defaults("Pendulum-v1", 100_000, 10),
        _by_defaults("Acrobot-v1", 60_000, 10),
        _by_defaults("Hopper-v5", 150_000, 3),
        _by_defaults("HalfCheetah-v5", 150_000, 3),
        _by_defaults("BipedalWalker-v3", 150_000, 3),
    )
}
"""What PPO learns if nothing is set. Settings are chosen on seeds from 100; seeds 0, 1, ... are run once they are."""
