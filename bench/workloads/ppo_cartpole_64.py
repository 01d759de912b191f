"""PPO on CartPole with 64 environments: many lanes share a call, so environments and updates are most of the work."""

from __future__ import annotations

from workloads import PPOWorkload

WORKLOAD = PPOWorkload(
    title="PPO, CartPole-v1, 64 Gymnasium environments",
    env_id="CartPole-v1",
    num_envs=64,
    num_steps=128,
    num_epochs=4,
    num_minibatches=4,
    hidden_sizes=(64, 64),
    learning_rate=3e-4,
    entropy_coef=0.01,
    value_coef=0.5,
    max_grad_norm=0.5,
    clip_coef=0.2,
    gamma=0.99,
    gae_lambda=0.95,
)
