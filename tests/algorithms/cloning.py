"""Parts that declare fields of their own, as a user would write them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from quintain.algorithms import PPO, Loss, PPOSettings
from quintain.data import fields as f
from quintain.data.fields import Declared, Field, like
from quintain.data.rollout import Batch, Rollout
from quintain.rewards import RewardSignal
from quintain.trainers import Trainer, TrainerSettings

ALGORITHM = "tests.algorithms.cloning:CloningPPO"
TRAINER = "tests.algorithms.cloning:AskingTrainer"


class CloningSettings(PPOSettings):
    """Configures PPO beside an expert."""


class CloningPPO(PPO):
    """Keeps what an expert would have done: one more than what was done."""

    settings_class = CloningSettings

    minibatch_fields: ClassVar[tuple[str, ...]] = (*PPO.minibatch_fields, "expert_action")

    def declare_fields(self) -> Declared:
        return {**super().declare_fields(), "expert_action": like("action")}

    def estimate(self, batch: Batch) -> None:
        super().estimate(batch)
        for rollout in batch:
            for name in f.names_of("action", rollout.storage):
                rollout.storage[f"expert_{name}"].copy_(rollout.storage[name] + 1)

    def loss(self, minibatch: Any, fraction: float) -> Loss:
        for name in f.names_of("action", minibatch):
            assert torch.equal(minibatch[f"expert_{name}"], minibatch[name] + 1)
        return super().loss(minibatch, fraction)


class AskingTrainer(Trainer):
    """Writes at every step how far the environment says the agent is, by the callback that hears steps."""

    settings_class = TrainerSettings

    @classmethod
    def declare_fields(cls) -> Declared:
        return {"distance": Field((2,))}

    def _collect_rollout(self, on_step: Any = None) -> bool:
        return super()._collect_rollout(self.write_distance)

    def write_distance(self, step: Any, info: Any) -> None:
        step["distance"].copy_(step["obs"].reshape(len(step["obs"]), -1)[:, :1].expand(-1, 2))


class Novelty(RewardSignal):
    """Keeps what it gave at every step."""

    def declare_fields(self) -> Declared:
        return {"novelty": Field()}

    def evaluate(self, rollout: Rollout) -> np.ndarray:
        rollout.array("novelty")[:-1] = 2.0
        return rollout.array("novelty")[:-1]
