"""Auxiliary losses of which a test knows every number."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from quintain.algorithms import AuxiliaryLoss, AuxiliaryLossSettings, Loss
from quintain.data.fields import Declared, Field
from quintain.data.rollout import Rollout
from quintain.rewards import RewardSignal, RewardSignalSettings


class Sums(AuxiliaryLoss):
    """mean_b(w * sum(obs_b)) with a weight w of its own, and the squared biases of the policy's last layer."""

    settings_class = AuxiliaryLossSettings

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.scale = nn.Linear(1, 1, bias=False)
        self.scale.weight.data.fill_(2.0)
        self.num_calls = 0

    def loss(self, minibatch: Any, fraction: float) -> Loss:
        self.num_calls += 1
        obs = minibatch["obs"].flatten(1).sum(dim=1, keepdim=True)
        own, policy = self.scale(obs).mean(), self.policy.actor[-1].bias.square().sum()
        return Loss(own + policy, {"mean": obs.mean().detach()})


class Weighted(Sums):
    """The same, over minibatches that have a field of its own."""

    minibatch_fields: ClassVar[tuple[str, ...]] = ("obs", "kept")

    def declare_fields(self) -> Declared:
        return {"kept": Field((2,))}

    def loss(self, minibatch: Any, fraction: float) -> Loss:
        assert torch.equal(minibatch["kept"], torch.full_like(minibatch["kept"], 3.0))
        return super().loss(minibatch, fraction)


class Keeping(RewardSignal):
    """Writes the field of `Weighted`."""

    settings_class = RewardSignalSettings

    def evaluate(self, rollout: Rollout) -> Any:
        rollout.array("kept")[...] = 3.0
        return rollout.array("reward")[:-1]
