"""RLlib: its PPO with the new API stack, one learner and the environments in the same process."""

from __future__ import annotations

import logging

from workloads import Workload

from peers import Tick

KIT = "rllib"
PACKAGES = ("ray", "torch", "gymnasium", "numpy")


def entries(work: Workload) -> tuple[str, ...]:
    if work.kind != "ppo" or work.is_image or work.meter != "rate":
        return ()
    return ("gymnasium",)


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    hyper = work.ppo
    network = DefaultModelConfig(fcnet_hiddens=list(hyper.hidden_sizes), fcnet_activation="tanh", vf_share_layers=False)
    config = (
        PPOConfig()
        .environment(work.env_id)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=work.num_envs,
            rollout_fragment_length=hyper.num_steps,
            gym_env_vectorize_mode="sync",
        )
        .training(
            train_batch_size_per_learner=work.steps_per_iteration,
            minibatch_size=work.minibatch_size,
            num_epochs=hyper.num_epochs,
            lr=hyper.learning_rate,
            gamma=hyper.gamma,
            lambda_=hyper.gae_lambda,
            clip_param=hyper.clip_coef,
            entropy_coeff=hyper.entropy_coef,
            vf_loss_coeff=hyper.value_coef,
            grad_clip=hyper.max_grad_norm,
            use_kl_loss=False,
        )
        .rl_module(model_config=network)
        .learners(num_learners=0)
        .debugging(seed=seed)
    )
    algorithm = config.build_algo()
    while not tick(algorithm.train()["num_env_steps_sampled_lifetime"]):
        pass
