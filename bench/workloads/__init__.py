"""What is measured: each module describes one workload as WORKLOAD, in terms that every peer understands."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class PPOWorkload:
    """PPO with two separate tanh perceptrons; every peer must do exactly this work per iteration."""

    title: str
    env_id: str
    num_envs: int
    num_steps: int
    num_epochs: int
    num_minibatches: int
    hidden_sizes: tuple[int, ...]
    learning_rate: float
    entropy_coef: float
    value_coef: float
    max_grad_norm: float
    clip_coef: float
    gamma: float
    gae_lambda: float

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        return self.steps_per_iteration // self.num_minibatches


def find(name: str) -> PPOWorkload:
    """Returns the workload of the module with this name."""
    workload: PPOWorkload = import_module(f"workloads.{name}").WORKLOAD
    return workload
