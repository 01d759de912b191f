"""Stable-Baselines3 as its documentation says: make_vec_env (a DummyVecEnv with a monitor) and PPO on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from workloads import PPOWorkload

REQUIREMENTS: tuple[str, ...] = ("stable-baselines3==2.9.2", "gymnasium>=1.2,<2")
PACKAGES = ("stable-baselines3", "torch", "gymnasium", "numpy")


def train(workload: PPOWorkload, seed: int, tick: Callable[[int], bool]) -> None:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class StopWhenMeasured(BaseCallback):
        is_over = False

        def _on_rollout_end(self) -> None:
            # Once per iteration at the same point of the loop: the time between two calls holds one update.
            self.is_over = tick(self.num_timesteps)

        def _on_step(self) -> bool:
            return not self.is_over

    model = PPO(
        "MlpPolicy",
        make_vec_env(workload.env_id, n_envs=workload.num_envs, seed=seed),
        n_steps=workload.num_steps,
        batch_size=workload.minibatch_size,
        n_epochs=workload.num_epochs,
        learning_rate=workload.learning_rate,
        ent_coef=workload.entropy_coef,
        vf_coef=workload.value_coef,
        max_grad_norm=workload.max_grad_norm,
        clip_range=workload.clip_coef,
        gamma=workload.gamma,
        gae_lambda=workload.gae_lambda,
        policy_kwargs={"net_arch": list(workload.hidden_sizes), "activation_fn": torch.nn.Tanh},
        device="cpu",
        seed=seed,
    )
    model.learn(10**9, callback=StopWhenMeasured())
