"""skrl: its PPO and SAC agents, random memory and sequential trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from workloads import Workload

from peers import Measured, Tick

KIT = "skrl"
PACKAGES = ("skrl", "torch", "gymnasium", "numpy")


def entries(work: Workload) -> tuple[str, ...]:
    if work.kind == "step_io" or work.is_image or work.meter != "rate":
        return ()
    return ("gymnasium",)


def ppo(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    import gymnasium
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from torch import nn

    hyper = work.ppo
    lanes = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(work.env_id) for _ in range(work.num_envs)])
    env = wrap_env(lanes, verbose=False)
    settings = PPO_CFG(
        rollouts=hyper.num_steps,
        learning_epochs=hyper.num_epochs,
        mini_batches=hyper.num_minibatches,
        learning_rate=hyper.learning_rate,
        entropy_loss_scale=hyper.entropy_coef,
        value_loss_scale=hyper.value_coef,
        grad_norm_clip=hyper.max_grad_norm,
        ratio_clip=hyper.clip_coef,
    )
    done = 0

    class MeasuredPPO(PPO):
        def update(self, **keywords: Any) -> None:
            nonlocal done
            super().update(**keywords)
            done += work.steps_per_iteration
            if tick(done):
                raise Measured

    policy = _categorical if work.is_discrete else _gaussian
    models = {
        "policy": policy(env, hyper.hidden_sizes, nn.Tanh),
        "value": _deterministic(env, hyper.hidden_sizes, nn.Tanh, takes_actions=False),
    }
    memory = RandomMemory(memory_size=hyper.num_steps, num_envs=work.num_envs, device="cpu")
    _train(env, MeasuredPPO(models=models, memory=memory, cfg=_silent(settings), **_spaces(env)))


def sac(work: Workload, entry: str, seed: int, threads: int, tick: Tick) -> None:
    import gymnasium
    from skrl.agents.torch.sac import SAC, SAC_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from torch import nn

    hyper = work.sac
    env = wrap_env(gymnasium.make(work.env_id), verbose=False)
    settings = SAC_CFG(
        batch_size=hyper.batch_size,
        learning_rate=hyper.learning_rate,
        random_timesteps=hyper.learning_starts,
        learning_starts=hyper.learning_starts,
    )
    done = 0

    class MeasuredSAC(SAC):
        def update(self, **keywords: Any) -> None:
            nonlocal done
            super().update(**keywords)
            done += 1
            if done % hyper.tick_every == 0 and tick(done):
                raise Measured

    critics = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    models = {name: _deterministic(env, hyper.hidden_sizes, nn.ReLU, takes_actions=True) for name in critics}
    models["policy"] = _squashed(env, hyper.hidden_sizes)
    memory = RandomMemory(memory_size=hyper.buffer_size, num_envs=1, device="cpu")
    _train(env, MeasuredSAC(models=models, memory=memory, cfg=_silent(settings), **_spaces(env)))


def _train(env: Any, agent: Any) -> None:
    from skrl.trainers.torch import SequentialTrainer

    options = {"timesteps": 10**7, "disable_progressbar": True, "headless": True}
    try:
        SequentialTrainer(env=env, agents=agent, cfg=options).train()
    except Measured:
        return


def _silent(settings: Any) -> Any:
    settings.experiment.directory = tempfile.mkdtemp()
    settings.experiment.write_interval = 0
    settings.experiment.checkpoint_interval = 0
    return settings


def _spaces(env: Any) -> dict[str, Any]:
    return {
        "observation_space": env.observation_space,
        "state_space": env.state_space,
        "action_space": env.action_space,
        "device": "cpu",
    }


def _perceptron(num_inputs: int, hidden_sizes: Sequence[int], num_outputs: int, activation: Any) -> Any:
    from torch import nn

    layers: list[Any] = []
    for size in hidden_sizes:
        layers += [nn.Linear(num_inputs, size), activation()]
        num_inputs = size
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_outputs))


def _categorical(env: Any, hidden_sizes: Sequence[int], activation: Any) -> Any:
    from skrl.models.torch import CategoricalMixin, Model

    class Categorical(CategoricalMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **_spaces(env))
            CategoricalMixin.__init__(self)
            self.layers = _perceptron(self.num_observations, hidden_sizes, self.num_actions, activation)

        def compute(self, inputs: Any, role: str = "") -> Any:
            return self.layers(inputs["observations"]), {}

    return Categorical()


def _gaussian(env: Any, hidden_sizes: Sequence[int], activation: Any) -> Any:
    import torch
    from skrl.models.torch import GaussianMixin, Model

    class Gaussian(GaussianMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **_spaces(env))
            GaussianMixin.__init__(self)
            self.layers = _perceptron(self.num_observations, hidden_sizes, self.num_actions, activation)
            self.log_std = torch.nn.Parameter(torch.zeros(self.num_actions))

        def compute(self, inputs: Any, role: str = "") -> Any:
            return self.layers(inputs["observations"]), {"log_std": self.log_std}

    return Gaussian()


def _squashed(env: Any, hidden_sizes: Sequence[int]) -> Any:
    import torch
    from skrl.models.torch import GaussianMixin, Model

    class Squashed(GaussianMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **_spaces(env))
            GaussianMixin.__init__(self, clip_actions=True)
            self.layers = _perceptron(self.num_observations, hidden_sizes, 2 * self.num_actions, torch.nn.ReLU)

        def compute(self, inputs: Any, role: str = "") -> Any:
            mean, log_std = self.layers(inputs["observations"]).chunk(2, dim=-1)
            return torch.tanh(mean), {"log_std": log_std}

    return Squashed()


def _deterministic(env: Any, hidden_sizes: Sequence[int], activation: Any, *, takes_actions: bool) -> Any:
    import torch
    from skrl.models.torch import DeterministicMixin, Model

    class Deterministic(DeterministicMixin, Model):
        def __init__(self) -> None:
            Model.__init__(self, **_spaces(env))
            DeterministicMixin.__init__(self)
            num_inputs = self.num_observations + (self.num_actions if takes_actions else 0)
            self.layers = _perceptron(num_inputs, hidden_sizes, 1, activation)

        def compute(self, inputs: Any, role: str = "") -> Any:
            rows = inputs["observations"]
            rows = torch.cat([rows, inputs["taken_actions"]], dim=-1) if takes_actions else rows
            return self.layers(rows), {}

    return Deterministic()
