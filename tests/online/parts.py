"""Policies and a trainer as users of MineStudio write them, for tests."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import torch
from torch import nn

from quintain.envs.minecraft import MinecraftEnv
from quintain.online import BaseTrainer
from quintain.policies.mine_policy import MinePolicy
from tests.online.environments import aging_simulator


class Small(MinePolicy):
    """A recurrent policy for CartPole, which knows nothing of `first`."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(hiddim=8, action_space=gymnasium.spaces.Discrete(2))
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout))
        self.cell = nn.GRU(8, 8, batch_first=True)

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        latent, state = self.cell(torch.tanh(self.body(input["obs"])), state_in.transpose(0, 1).contiguous())
        return {"pi_logits": self.pi_head(latent), "vpred": self.value_head(latent)}, state.transpose(0, 1)

    def initial_state(self, batch_size: int | None = None) -> Any:
        return torch.zeros(batch_size or 1, 1, 8)


class Counts(MinePolicy):
    """Remembers how many steps an episode has had, which is its value; it knows nothing of `first`."""

    def __init__(self, action_space: Any = gymnasium.spaces.Discrete(2)) -> None:  # noqa: B008  # not changed
        super().__init__(hiddim=1, action_space=action_space)

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        [obs] = input.values()
        number = state_in + torch.arange(obs.shape[1])
        return {"pi_logits": self.pi_head(number.unsqueeze(-1)), "vpred": number}, number[:, -1:] + 1.0

    def initial_state(self, batch_size: int | None = None) -> Any:
        return torch.zeros(batch_size or 1, 1)


def policy_generator() -> MinePolicy:
    return Small()


def image_policy_generator() -> MinePolicy:
    return Counts(MinecraftEnv(partial(aging_simulator, 5)).action_space)


class OwnTrainer(BaseTrainer):
    """A trainer as in the seeds: two methods, and a loop of its own."""

    def setup_model_and_optimizer(self) -> Any:
        model = self.policy_generator()
        return model, torch.optim.AdamW(model.parameters(), lr=self.config.learning_rate)

    def train(self) -> None:
        for iteration in range(self.num_updates, self.config.num_iterations):
            if self.config.anneal_lr_linearly:
                rate = self.config.learning_rate * (1.0 - iteration / self.config.num_iterations)
                self.optimizer.param_groups[0]["lr"] = rate
            data = self.fetch_fragments_and_estimate_advantages(num_fragments=4)
            for fragments in self.data_iter(data["records"], 2):
                advantage, target, old = (
                    data[name].format_batch(fragments, self.inner_model.device)
                    for name in ("advantages", "td_targets", "old_logps")
                )
                _, log_prob, value = self.evaluate_fragments(fragments)
                loss = -((log_prob - old).exp() * advantage).mean() + 0.5 * (value - target).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.log({"loss": loss})
            self.before_broadcast(iteration)
            self.broadcast_model_to_rollout_workers(new_version=True)

    def before_broadcast(self, iteration: int) -> None:
        """For tests."""


def online_dict(max_staleness: int = 0, **train: Any) -> dict[str, Any]:
    """Returns a small configuration: two environments, fragments of 8 steps, 4 fragments in an iteration."""
    return {
        "rollout_config": {
            "fragment_length": 8,
            "worker_config": {"num_envs": 2},
            "replay_buffer_config": {"max_staleness": max_staleness, "max_reuse": 1},
        },
        "train_config": {
            "num_iterations": 4,
            "batches_per_iteration": 4,
            "gradient_accumulation": 2,
            "learning_rate": 1e-2,
            "use_normalized_vf": False,
            "save_interval": 1,
            "keep_interval": 2,
            **train,
        },
    }
