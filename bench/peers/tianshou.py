"""Tianshou: its PPO and SAC with the collectors, buffers and trainers of its examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workloads import Workload

from peers import Measured, Tick

KIT = "tianshou"
PACKAGES = ("tianshou", "torch", "gymnasium", "numpy", "envpool")


def entries(work: Workload) -> tuple[str, ...]:
    if work.kind == "step_io" or work.is_image or work.meter != "rate":
        return ()
    return ("gymnasium",) if work.vectors == "gymnasium" or work.kind == "sac" else ("gymnasium", "envpool")


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    import gymnasium
    from tianshou.algorithm import PPO
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.trainer import OnPolicyTrainerParams

    hyper, sample = work.ppo, gymnasium.make(work.env_id)
    policy, critic = _actor_critic(sample, hyper.hidden_sizes, work.is_discrete)
    algorithm = PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=hyper.learning_rate),
        eps_clip=hyper.clip_coef,
        max_grad_norm=hyper.max_grad_norm,
        vf_coef=hyper.value_coef,
        ent_coef=hyper.entropy_coef,
        gae_lambda=hyper.gae_lambda,
        gamma=hyper.gamma,
        max_batchsize=8192,
    )
    buffer = VectorReplayBuffer(work.steps_per_iteration, work.num_envs)

    def after_iteration(epoch: int, env_steps: int) -> None:
        if tick(env_steps):
            raise Measured

    settings = OnPolicyTrainerParams(
        training_collector=Collector(algorithm, _environments(work, entry, seed), buffer),
        max_epochs=1000,
        epoch_num_steps=work.steps_per_iteration * 1000,
        batch_size=work.minibatch_size,
        update_step_num_repetitions=hyper.num_epochs,
        collection_step_num_env_steps=work.steps_per_iteration,
        training_fn=after_iteration,
        test_step_num_episodes=0,
        show_progress=False,
        verbose=False,
    )
    try:
        algorithm.run_training(settings)
    except Measured:
        return


def _actor_critic(sample: Any, hidden_sizes: Sequence[int], is_discrete: bool) -> tuple[Any, Any]:
    import torch
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
    from torch.distributions import Categorical, Independent, Normal

    def network() -> Any:
        shape = sample.observation_space.shape
        return Net(state_shape=shape, hidden_sizes=list(hidden_sizes), activation=torch.nn.Tanh)

    if is_discrete:
        actor = DiscreteActor(preprocess_net=network(), action_shape=sample.action_space.n, softmax_output=False)
        policy = DiscreteActorPolicy(
            actor=actor, dist_fn=lambda logits: Categorical(logits=logits), action_space=sample.action_space
        )
        return policy, DiscreteCritic(preprocess_net=network())
    shape = sample.action_space.shape
    actor = ContinuousActorProbabilistic(preprocess_net=network(), action_shape=shape, unbounded=True)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda moments: Independent(Normal(*moments), 1),
        action_space=sample.action_space,
        action_scaling=True,
        action_bound_method="clip",
    )
    return policy, ContinuousCritic(preprocess_net=network())


def _environments(work: Workload, entry: str, seed: int) -> Any:
    import gymnasium
    from tianshou.env import DummyVectorEnv

    if entry == "envpool":
        import envpool

        return envpool.make(work.env_id, env_type="gymnasium", num_envs=work.num_envs, num_threads=2, seed=seed)
    return DummyVectorEnv([lambda: gymnasium.make(work.env_id) for _ in range(work.num_envs)])


def sac(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    import gymnasium
    from tianshou.algorithm import SAC
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    hyper, sample = work.sac, gymnasium.make(work.env_id)
    observation, action = sample.observation_space.shape, sample.action_space.shape
    sizes = list(hyper.hidden_sizes)
    trunk = Net(state_shape=observation, hidden_sizes=sizes)
    actor = ContinuousActorProbabilistic(
        preprocess_net=trunk, action_shape=action, unbounded=True, conditioned_sigma=True
    )

    def critic() -> Any:
        joined = Net(state_shape=observation, action_shape=action, hidden_sizes=sizes, concat=True)
        return ContinuousCritic(preprocess_net=joined)

    adam = AdamOptimizerFactory(lr=hyper.learning_rate)
    algorithm = SAC(
        policy=SACPolicy(actor=actor, action_space=sample.action_space),
        policy_optim=adam,
        critic=critic(),
        critic_optim=adam,
        critic2=critic(),
        critic2_optim=adam,
        alpha=AutoAlpha(-float(action[0]), 0.0, AdamOptimizerFactory(lr=hyper.learning_rate)),
    )
    buffer = VectorReplayBuffer(hyper.buffer_size, 1)
    collector = Collector(algorithm, DummyVectorEnv([lambda: gymnasium.make(work.env_id)]), buffer)
    collector.reset()
    collector.collect(n_step=hyper.learning_starts, random=True)

    def after_step(epoch: int, env_steps: int) -> None:
        if env_steps % hyper.tick_every == 0 and tick(env_steps):
            raise Measured

    settings = OffPolicyTrainerParams(
        training_collector=collector,
        max_epochs=1000,
        epoch_num_steps=100_000,
        batch_size=hyper.batch_size,
        collection_step_num_env_steps=1,
        update_step_num_gradient_steps_per_sample=1.0,
        training_fn=after_step,
        test_step_num_episodes=0,
        show_progress=False,
        verbose=False,
    )
    try:
        algorithm.run_training(settings)
    except Measured:
        return
