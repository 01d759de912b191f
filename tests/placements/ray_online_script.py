"""A script as users of MineStudio write it, with generators and a trainer of the main script, on a Ray cluster.

`python -m tests.placements.ray_online_script ADDRESS NAME HOW`: HOW is `start` (the driver learns), `fit` (one worker
of `TorchTrainer` learns by the script's own trainer), `fit2` (two do) or `ranks` (two do, by PPOTrainer).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import gymnasium
import torch
from torch import nn

from quintain.compat.minestudio.online.rollout.start_manager import start_rolloutmanager
from quintain.compat.minestudio.online.trainer.basetrainer import BaseTrainer
from quintain.compat.minestudio.online.trainer.start_trainer import start_trainer
from quintain.policies import MinePolicy


class Walker(MinePolicy):
    """A recurrent policy for CartPole."""

    def __init__(self) -> None:
        super().__init__(hiddim=8, action_space=gymnasium.spaces.Discrete(2))
        self.body = nn.Linear(4, 8)
        self.cell = nn.GRU(8, 8, batch_first=True)

    def forward(self, input: Any, state_in: Any, **kwargs: Any) -> Any:
        latent, state = self.cell(self.body(input["obs"]).tanh(), state_in.transpose(0, 1).contiguous())
        return {"pi_logits": self.pi_head(latent), "vpred": self.value_head(latent)}, state.transpose(0, 1)

    def initial_state(self, batch_size: int | None = None) -> Any:
        return torch.zeros(batch_size or 1, 1, 8)


def policy_generator() -> MinePolicy:
    return Walker()


def env_generator() -> Any:
    return gymnasium.make("CartPole-v1")


class OwnTrainer(BaseTrainer):
    """The two methods of the seeds' example, and a call of the GAE actor by its handle."""

    def setup_model_and_optimizer(self) -> Any:
        model = self.policy_generator()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train(self) -> None:
        import ray

        for _ in range(self.num_updates, self.num_iterations):
            data = self.fetch_fragments_and_estimate_advantages(num_fragments=4)
            for fragments in self.data_iter(data["records"], 2):
                advantage = data["advantages"].format_batch(fragments)
                _, log_prob, _ = self.evaluate_fragments(fragments)
                loss = -((log_prob - data["old_logps"].format_batch(fragments)).exp() * advantage).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            [(target, _)] = ray.get(self.gae_actor.get_target.remote([data["records"][0][0]]))
            assert target.shape == (8,)
            self.broadcast_model_to_rollout_workers(new_version=True)
        if self.rank:
            return
        about = {
            "pid": os.getpid(),
            "rank": os.environ.get("RANK"),
            "manager": type(self.rollout_manager).__name__,
            "config": ray.get(self.rollout_manager.get_saved_config.remote())["fragment_length"],
        }
        with open("own.json", "w") as file:
            json.dump(about, file)


def online_dict(name: str, num_workers: int) -> dict[str, Any]:
    return {
        "rollout_config": {
            "num_rollout_workers": num_workers,
            "num_cpus_per_worker": 0.5,
            "fragment_length": 8,
            "worker_config": {"num_envs": 2},
            "replay_buffer_config": {"max_staleness": 1, "max_reuse": 1},
        },
        "train_config": {
            "num_workers": num_workers,
            "num_readers": 4,
            "num_iterations": 3,
            "batches_per_iteration": 4,
            "gradient_accumulation": 2,
            "save_interval": 1,
            "keep_interval": 2,
        },
        "logger_config": {"name": name},
    }


def main(address: str, name: str, how: str) -> None:
    config = online_dict(name, 2 if how in ("ranks", "fit2") else 1)
    manager = start_rolloutmanager(policy_generator, env_generator, config, address=address)
    assert type(manager).__name__ == "ActorHandle"
    if not how.startswith("fit"):
        start_trainer(policy_generator, env_generator, config)
        return
    train = {name: value for name, value in config["train_config"].items() if name != "num_readers"}
    OwnTrainer(
        rollout_manager=manager, policy_generator=policy_generator, env_generator=env_generator, **train
    ).fit()  # fmt: skip
    with open("own.json") as file:
        about = json.load(file)
    assert (about["rank"], about["manager"], about["config"]) == ("0", "ActorHandle", 8), about
    assert about["pid"] != os.getpid(), "_train_func ran in the driver"


if __name__ == "__main__":
    main(*sys.argv[1:])
