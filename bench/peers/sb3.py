"""Stable-Baselines3 as its documentation says: make_vec_env (a DummyVecEnv with a monitor), PPO and SAC on the CPU."""

from __future__ import annotations

from typing import Any

from workloads import PPO, SAC, Workload

from peers import Tick

KIT = "sb3"
PACKAGES = ("stable-baselines3", "torch", "gymnasium", "numpy", "envpool")


def entries(work: Workload) -> tuple[str, ...]:
    return ("gymnasium", "envpool") if takes_envpool(work) else ("gymnasium",)


def takes_envpool(work: Workload) -> bool:
    """Says whether a workload may be done with EnvPool, which has its environments."""
    return work.kind == "ppo" and work.vectors == "any" and not work.is_image


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    from stable_baselines3 import PPO as Model

    settings = ppo_settings(work.ppo, work.num_envs)
    if work.is_image:
        del settings["policy_kwargs"]
    policy = "CnnPolicy" if work.is_image else "MlpPolicy"
    learn(Model(policy, environments(work, entry, seed), device="cpu", seed=seed, **settings), work, tick)


def ppo_settings(hyper: PPO, num_envs: int) -> dict[str, Any]:
    """Returns what SB3 calls the settings of PPO with perceptrons."""
    import torch

    return {
        "learning_rate": _schedule(hyper.learning_rate, hyper.is_annealed),
        "clip_range": _schedule(hyper.clip_coef, hyper.is_annealed),
        "n_steps": hyper.num_steps,
        "batch_size": hyper.minibatch_size(num_envs),
        "n_epochs": hyper.num_epochs,
        "ent_coef": hyper.entropy_coef,
        "vf_coef": hyper.value_coef,
        "max_grad_norm": hyper.max_grad_norm,
        "gamma": hyper.gamma,
        "gae_lambda": hyper.gae_lambda,
        "policy_kwargs": {"net_arch": list(hyper.hidden_sizes), "activation_fn": torch.nn.Tanh},
    }


def sac(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    from stable_baselines3 import SAC as Model

    learn(Model("MlpPolicy", work.env_id, device="cpu", seed=seed, **sac_settings(work.sac)), work, tick)


def sac_settings(hyper: SAC) -> dict[str, Any]:
    """Returns what SB3 and those that follow it call the settings of SAC."""
    return {
        "learning_rate": hyper.learning_rate,
        "buffer_size": hyper.buffer_size,
        "learning_starts": hyper.learning_starts,
        "batch_size": hyper.batch_size,
        "train_freq": 1,
        "gradient_steps": 1,
        "policy_kwargs": {"net_arch": list(hyper.hidden_sizes)},
    }


def learn(model: Any, work: Workload, tick: Tick) -> None:
    """Trains, with a tick at the same point of every iteration: the time between two calls holds one update."""
    from stable_baselines3.common.callbacks import BaseCallback

    class StopWhenMeasured(BaseCallback):
        is_over = False

        def _on_rollout_end(self) -> None:
            if work.kind == "ppo":
                newest = [info["r"] for info in list(self.model.ep_info_buffer)[-20:]]
                self.is_over = tick(self.num_timesteps, sum(newest) / 20 if len(newest) == 20 else None)

        def _on_step(self) -> bool:
            if work.kind == "sac" and self.num_timesteps > work.sac.learning_starts:
                self.is_over = self.num_timesteps % work.sac.tick_every == 0 and tick(self.num_timesteps)
            return not self.is_over

    model.learn(work.total_steps, callback=StopWhenMeasured())


def step_io(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    """Adds steps to a rollout buffer and reads their fields back."""
    import gymnasium
    import numpy as np
    import torch
    from stable_baselines3.common.buffers import RolloutBuffer

    env, rng, lanes = gymnasium.make(work.env_id), np.random.default_rng(seed), work.num_envs
    buffer = RolloutBuffer(work.ppo.num_steps, env.observation_space, env.action_space, "cpu", n_envs=lanes)
    obs, action = rng.random((lanes, 4), np.float32), rng.integers(0, 2, (lanes, 1))
    reward, first = rng.random(lanes, np.float32), (rng.random(lanes) < 0.1).astype(np.float32)
    value, log_prob = torch.rand(lanes), torch.rand(lanes)
    count, is_over = 0, False
    while not is_over:
        for _ in range(20):
            buffer.reset()
            for t in range(work.ppo.num_steps):
                buffer.add(obs, action, reward, first, value, log_prob)
                assert buffer.observations[t] is not None
                assert buffer.actions[t] is not None
        count += 20 * work.ppo.num_steps
        is_over = tick(count)


def _schedule(start: float, is_falling: bool) -> Any:
    return (lambda remaining: remaining * start) if is_falling else start


def environments(work: Workload, entry: str, seed: int) -> Any:
    """Returns the vector environment of an entry."""
    from image_env import factory
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecMonitor

    if entry == "envpool":
        from peers.sb3_envpool import EnvPoolLanes

        return VecMonitor(EnvPoolLanes(work.env_id, work.num_envs, seed))
    env = factory(work.env_id) if work.is_image else work.env_id
    return make_vec_env(env, n_envs=work.num_envs, seed=seed)
