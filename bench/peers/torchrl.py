"""TorchRL: collector, GAE module, clipped loss and replay buffer, put together as in the library's own examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workloads import Workload

from peers import Tick

KIT = "torchrl"
PACKAGES = ("torchrl", "tensordict", "torch", "gymnasium", "numpy")


def entries(work: Workload) -> tuple[str, ...]:
    # Its EnvPool wrapper imports gym, which no longer works beside this Gymnasium.
    return () if work.is_image or work.meter != "rate" else ("gymnasium",)


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    import torch
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
    from torchrl.modules import ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.manual_seed(seed)
    hyper = work.ppo
    env = _environments(work)
    num_inputs = env.observation_spec["observation"].shape[-1]
    actor = _actor(env, work, num_inputs)
    critic = ValueOperator(_perceptron(num_inputs, hyper.hidden_sizes, 1, torch.nn.Tanh), in_keys=["observation"])
    estimate = GAE(gamma=hyper.gamma, lmbda=hyper.gae_lambda, value_network=critic, average_gae=False)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=hyper.clip_coef,
        entropy_coeff=hyper.entropy_coef,
        critic_coeff=hyper.value_coef,
        normalize_advantage=True,
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=hyper.learning_rate, eps=1e-5)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(work.steps_per_iteration),
        sampler=SamplerWithoutReplacement(),
        batch_size=work.minibatch_size,
    )
    done = 0
    for batch in Collector(env, actor, frames_per_batch=work.steps_per_iteration, total_frames=-1):
        done += batch.numel()
        with torch.no_grad():
            estimate(batch)
        buffer.extend(batch.reshape(-1))
        for _ in range(hyper.num_epochs):
            for minibatch in buffer:
                parts = loss(minibatch)
                (parts["loss_objective"] + parts["loss_critic"] + parts["loss_entropy"]).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), hyper.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
        if tick(done):
            return


def _environments(work: Workload) -> Any:
    from torchrl.envs import DoubleToFloat, GymEnv, SerialEnv, TransformedEnv

    options = {"categorical_action_encoding": True} if work.is_discrete else {}
    env = SerialEnv(work.num_envs, lambda: GymEnv(work.env_id, **options))
    return env if work.is_discrete else TransformedEnv(env, DoubleToFloat())


def _actor(env: Any, work: Workload, num_inputs: int) -> Any:
    import torch
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torchrl.modules import IndependentNormal, ProbabilisticActor

    sizes = work.ppo.hidden_sizes
    if work.is_discrete:
        network = TensorDictModule(_perceptron(num_inputs, sizes, 2, torch.nn.Tanh), ["observation"], ["logits"])
        kind = torch.distributions.Categorical
        return ProbabilisticActor(
            network, in_keys=["logits"], spec=env.action_spec, distribution_class=kind, return_log_prob=True
        )
    num_actions = env.action_spec.shape[-1]
    layers = torch.nn.Sequential(
        _perceptron(num_inputs, sizes, num_actions, torch.nn.Tanh), AddStateIndependentNormalScale(num_actions)
    )
    network = TensorDictModule(layers, ["observation"], ["loc", "scale"])
    return ProbabilisticActor(
        network,
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )


def sac(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    import torch
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.envs import DoubleToFloat, GymEnv, TransformedEnv
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import SACLoss, SoftUpdate

    torch.manual_seed(seed)
    hyper = work.sac
    env = TransformedEnv(GymEnv(work.env_id), DoubleToFloat())
    num_inputs, num_actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    layers = torch.nn.Sequential(
        _perceptron(num_inputs, hyper.hidden_sizes, 2 * num_actions, torch.nn.ReLU), NormalParamExtractor()
    )
    bounds = {"low": env.action_spec.space.low, "high": env.action_spec.space.high}
    actor = ProbabilisticActor(
        TensorDictModule(layers, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=TanhNormal,
        distribution_kwargs=bounds,
    )

    class Joined(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = _perceptron(num_inputs + num_actions, hyper.hidden_sizes, 1, torch.nn.ReLU)

        def forward(self, observation: Any, action: Any) -> Any:
            return self.layers(torch.cat([observation, action], dim=-1))

    critic = ValueOperator(Joined(), in_keys=["observation", "action"])
    loss = SACLoss(actor, critic, num_qvalue_nets=2)
    loss.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss, tau=0.005)
    optimizer = torch.optim.Adam(loss.parameters(), lr=hyper.learning_rate)
    storage = LazyTensorStorage(hyper.buffer_size)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=hyper.batch_size)
    options = {"frames_per_batch": 1, "total_frames": -1, "init_random_frames": hyper.learning_starts}
    for done, step in enumerate(Collector(env, actor, **options), start=1):
        buffer.extend(step.reshape(-1))
        if done <= hyper.learning_starts:
            continue
        parts = loss(buffer.sample())
        (parts["loss_qvalue"] + parts["loss_actor"] + parts["loss_alpha"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        target.step()
        if done % hyper.tick_every == 0 and tick(done):
            return


def step_io(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    """Writes steps into a preallocated TensorDict and reads them back, as TorchRL's collectors do."""
    import torch
    from tensordict import TensorDict

    torch.manual_seed(seed)
    lanes, steps = work.num_envs, work.ppo.num_steps
    row = TensorDict(
        {
            "obs": torch.rand(lanes, 4),
            "action": torch.randint(0, 2, (lanes,)),
            "log_prob": torch.rand(lanes),
            "value": torch.rand(lanes),
            "reward": torch.rand(lanes),
            "done": torch.rand(lanes) < 0.1,
        },
        batch_size=[lanes],
    )
    block = row.unsqueeze(0).expand(steps, lanes).clone()
    done, is_over = 0, False
    while not is_over:
        for _ in range(5):
            for t in range(steps):
                block[t] = row
                assert block["obs"][t] is not None
                assert block["action"][t] is not None
        done += 5 * steps
        is_over = tick(done)


def _perceptron(num_inputs: int, hidden_sizes: Sequence[int], num_outputs: int, activation: Any) -> Any:
    from torch import nn

    layers: list[Any] = []
    for size in hidden_sizes:
        layers += [nn.Linear(num_inputs, size), activation()]
        num_inputs = size
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_outputs))
