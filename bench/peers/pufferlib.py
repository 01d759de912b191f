"""PufferLib: its trainer, with Gymnasium's environments through its emulation or with its native CartPole in C."""

from __future__ import annotations

import tempfile
from typing import Any

from workloads import Workload

from peers import Tick

KIT = "pufferlib"
PACKAGES = ("pufferlib", "torch", "gymnasium", "numpy")


def entries(work: Workload) -> tuple[str, ...]:
    if work.kind != "ppo" or work.is_image or work.meter != "rate":
        return ()
    if work.vectors == "gymnasium":
        return ("gymnasium",)
    return ("native", "native+workers") if work.env_id == "CartPole-v1" else ("gymnasium", "gymnasium+workers")


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    from pufferlib import pufferl

    hyper = work.ppo
    env = _environments(work, entry)
    settings = {
        "seed": seed,
        "torch_deterministic": False,
        "cpu_offload": False,
        "device": "cpu",
        "optimizer": "adam",
        "anneal_lr": False,
        "precision": "float32",
        "total_timesteps": work.total_steps,
        "learning_rate": hyper.learning_rate,
        "gamma": hyper.gamma,
        "gae_lambda": hyper.gae_lambda,
        "update_epochs": hyper.num_epochs,
        "clip_coef": hyper.clip_coef,
        "vf_coef": hyper.value_coef,
        "vf_clip_coef": 0.2,
        "max_grad_norm": hyper.max_grad_norm,
        "ent_coef": hyper.entropy_coef,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-5,
        "data_dir": tempfile.mkdtemp(),
        "checkpoint_interval": 10**9,
        "batch_size": work.steps_per_iteration,
        "minibatch_size": work.minibatch_size,
        "max_minibatch_size": 10**6,
        "bptt_horizon": hyper.num_steps,
        "compile": False,
        "compile_mode": "default",
        "compile_fullgraph": False,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "prio_alpha": 0.8,
        "prio_beta0": 0.2,
        "use_rnn": False,
        "env": "bench",
        "name": "bench",
        "project": "bench",
    }
    # Drawing its screen is not what is measured.
    pufferl.PuffeRL.print_dashboard = lambda *_, **__: None
    trainer = pufferl.PuffeRL(settings, env, _policy(env.driver_env, hyper.hidden_sizes))
    import torch

    torch.set_num_threads(threads)
    is_over = False
    while not is_over:
        trainer.evaluate()
        trainer.train()
        is_over = tick(trainer.global_step)


def _environments(work: Workload, entry: str) -> Any:
    import gymnasium
    import pufferlib.emulation
    import pufferlib.vector

    make, (kind, _, workers) = pufferlib.vector.make, entry.partition("+")
    if kind == "native":
        from pufferlib.ocean.cartpole.cartpole import Cartpole

        if not workers:
            options = {"num_envs": work.num_envs, "report_interval": 64}
            return make(Cartpole, num_envs=1, env_kwargs=options, backend=pufferlib.vector.PufferEnv)
        options = {"num_envs": work.num_envs // 2, "report_interval": 64}
        backend = pufferlib.vector.Multiprocessing
        return make(Cartpole, num_envs=2, num_workers=2, batch_size=1, env_kwargs=options, backend=backend)

    def one(**keywords: Any) -> Any:
        # It needs an older Gymnasium, whose newest HalfCheetah is v4.
        env = gymnasium.make(work.env_id.replace("-v5", "-v4"))
        env = env if work.is_discrete else pufferlib.ClipAction(env)
        return pufferlib.emulation.GymnasiumPufferEnv(env=pufferlib.EpisodeStats(env), **keywords)

    if not workers:
        return make(one, num_envs=work.num_envs, backend=pufferlib.vector.Serial)
    backend = pufferlib.vector.Multiprocessing
    return make(one, num_envs=work.num_envs, num_workers=2, batch_size=work.num_envs // 2, backend=backend)


def _policy(env: Any, hidden_sizes: tuple[int, ...]) -> Any:
    import math

    import torch
    from torch import nn

    def perceptron(num_outputs: int) -> Any:
        size, layers = math.prod(env.single_observation_space.shape), []
        for width in hidden_sizes:
            layers += [nn.Linear(size, width), nn.Tanh()]
            size = width
        return nn.Sequential(*layers, nn.Linear(size, num_outputs))

    class ActorCritic(nn.Module):
        hidden_size = hidden_sizes[-1]

        def __init__(self) -> None:
            super().__init__()
            space = env.single_action_space
            self.is_discrete = hasattr(space, "n")
            num_outputs = int(space.n) if self.is_discrete else space.shape[0]
            self.actor, self.critic = perceptron(num_outputs), perceptron(1)
            if not self.is_discrete:
                self.log_std = nn.Parameter(torch.zeros(1, num_outputs))

        def forward_eval(self, obs: Any, state: Any = None) -> Any:
            rows = obs.float()
            chosen = self.actor(rows)
            if not self.is_discrete:
                chosen = torch.distributions.Normal(chosen, self.log_std.exp().expand_as(chosen))
            return chosen, self.critic(rows)

        def forward(self, obs: Any, state: Any = None) -> Any:
            return self.forward_eval(obs.float().reshape(-1, obs.shape[-1]))

    return ActorCritic()
