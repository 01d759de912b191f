"""What is learned beside Stable-Baselines3: the same task, settings and number of steps on both sides.

Needs nothing but Python, because it is read inside every peer's interpreter.
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
    num_episodes: int = 100
    """How many episodes the policy plays after training, without exploring."""


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
            "ppo-halfcheetah",
            "PPO, HalfCheetah-v5",
            "HalfCheetah-v5",
            1_000_000,
            num_envs=8,
            ppo=_RUN,
            normalize_obs=True,
            num_episodes=20,
        ),
        LearningTask(
            "sac-pendulum",
            "SAC, Pendulum-v1, networks of 2x64",
            "Pendulum-v1",
            20_000,
            sac=SAC(learning_rate=1e-3, hidden_sizes=(64, 64)),
        ),
        LearningTask("sac-halfcheetah", "SAC, HalfCheetah-v5", "HalfCheetah-v5", 50_000, sac=SAC(), num_episodes=20),
    )
}
