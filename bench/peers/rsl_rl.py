"""rsl_rl: its on-policy runner. It has Gaussian policies only, so the sign of one action drives the cart: same work."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from workloads import Workload

from peers import Measured, Tick

KIT = "rsl_rl"
PACKAGES = ("rsl-rl-lib", "torch", "gymnasium", "numpy", "envpool")


def entries(work: Workload) -> tuple[str, ...]:
    if work.kind != "ppo" or work.is_image or work.meter != "rate":
        return ()
    return ("gymnasium",) if work.vectors == "gymnasium" else ("gymnasium", "envpool")


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    import torch
    from rsl_rl.runners import OnPolicyRunner

    torch.manual_seed(seed)
    hyper, done = work.ppo, 0
    network = {"class_name": "MLPModel", "hidden_dims": list(hyper.hidden_sizes), "activation": "tanh"}
    settings = {
        "num_steps_per_env": hyper.num_steps,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "multi_gpu": None,
        "check_for_nan": True,
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
        "critic": network,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": hyper.num_epochs,
            "num_mini_batches": hyper.num_minibatches,
            "learning_rate": hyper.learning_rate,
            "schedule": "fixed",
            "entropy_coef": hyper.entropy_coef,
            "max_grad_norm": hyper.max_grad_norm,
        },
        "logger": "none",
        "run_name": "",
    }
    # The runner prints a screen per iteration; a terminal that draws it is not what is measured.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Measured):
        runner = OnPolicyRunner(_environments(work, entry, seed), settings, log_dir=None, device="cpu")
        update = runner.alg.update

        def measured_update() -> Any:
            nonlocal done
            losses = update()
            done += work.steps_per_iteration
            if tick(done):
                raise Measured
            return losses

        runner.alg.update = measured_update
        runner.learn(10**7)


def _environments(work: Workload, entry: str, seed: int) -> Any:
    import gymnasium
    import numpy as np
    import torch
    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

    class Lanes(VecEnv):
        def __init__(self) -> None:
            if entry == "envpool":
                import envpool

                options = {"env_type": "gymnasium", "num_envs": work.num_envs, "num_threads": 2, "seed": seed}
                self.lanes = envpool.make(work.env_id, **options)
                actions = self.lanes.action_space
            else:
                makers = [lambda: gymnasium.make(work.env_id) for _ in range(work.num_envs)]
                self.lanes = gymnasium.vector.SyncVectorEnv(makers)
                actions = self.lanes.single_action_space
            self.num_envs, self.device, self.cfg = work.num_envs, "cpu", {}
            self.num_actions = 1 if work.is_discrete else actions.shape[0]
            self.action_dtype = actions.dtype
            self.max_episode_length = 1000
            self.episode_length_buf = torch.zeros(work.num_envs, dtype=torch.long)
            self.obs = self._rows(self.lanes.reset()[0])

        def _rows(self, obs: Any) -> Any:
            rows = torch.as_tensor(np.asarray(obs), dtype=torch.float32)
            return TensorDict({"policy": rows}, batch_size=[work.num_envs])

        def get_observations(self) -> Any:
            return self.obs

        def reset(self) -> Any:
            return self.obs, {}

        def step(self, actions: Any) -> Any:
            chosen = actions.numpy()
            chosen = (chosen[:, 0] > 0).astype(np.int32) if work.is_discrete else np.clip(chosen, -1, 1)
            chosen = chosen if work.is_discrete else chosen.astype(self.action_dtype)
            obs, reward, terminated, truncated, _ = self.lanes.step(chosen)
            self.obs = self._rows(obs)
            extras = {"time_outs": torch.as_tensor(truncated)}
            return (
                self.obs,
                torch.as_tensor(reward, dtype=torch.float32),
                torch.as_tensor(terminated | truncated),
                extras,
            )

    return Lanes()
