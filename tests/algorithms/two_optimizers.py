"""Algorithms with several optimizers, as a user would write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quintain.algorithms import A2C, A2CSettings, Optimizer, TorchOptimizer
from quintain.algorithms.optimizer_set import MadeOptimizers

TWO = "tests.algorithms.two_optimizers:Two"
FOUR = "tests.algorithms.two_optimizers:Four"


class TwoSettings(A2CSettings):
    """Configures A2C with several optimizers."""


class Two(A2C):
    """Trains the actor by one optimizer and the critic by another."""

    settings_class = TwoSettings

    def make_optimizers(self) -> Mapping[str, Optimizer]:
        return {"actor": self.make_optimizer("actor.*"), "critic": self.make_optimizer("critic.*")}

    def gradient_step(
        self, minibatch: Any, fraction: float, learning_rate: float, micro_batch_size: int | None = None
    ) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        for name in self.optimizers:
            loss = self.loss(minibatch, fraction)
            parts |= loss.parts
            self.step_optimizer(name, loss.total, learning_rate, minibatch)
        return parts


class Four(Two):
    """Trains each of four layers by another optimizer of torch's; one of them by a rate of its own that falls."""

    def make_optimizers(self) -> MadeOptimizers:
        layers = [self.policy.get_submodule(name) for name in ("actor.0", "actor.2", "critic.0", "critic.2")]
        adam, adamw, rmsprop, sgd = ([*layer.parameters()] for layer in layers)
        by_own_rate = torch.optim.SGD(sgd, lr=0.05, momentum=0.9)
        return {
            "adam": torch.optim.Adam([{"params": adam[:1]}, {"params": adam[1:], "learning_rate_factor": 0.1}]),
            "adamw": torch.optim.AdamW(adamw, weight_decay=0.1, amsgrad=True),
            "rmsprop": torch.optim.RMSprop(rmsprop, momentum=0.5, centered=True),
            "sgd": TorchOptimizer(
                by_own_rate, self.trained_parameters(), max_grad_norm=0.5, manages_learning_rate=True
            ),
        }

    def update(self, batch: Any, progress: Any) -> Any:
        found = super().update(batch, progress)
        sgd = self.optimizers["sgd"]
        assert isinstance(sgd, TorchOptimizer)
        sgd.optimizer.param_groups[0]["lr"] *= 0.9
        return found


class Alone(A2C):
    """Trains everything by one optimizer of torch's."""

    def make_optimizers(self) -> MadeOptimizers:
        return torch.optim.AdamW(self.policy.parameters(), weight_decay=0.0, eps=1e-5)


class Named(Alone):
    """The same, returned by name."""

    def make_optimizers(self) -> MadeOptimizers:
        return {"only": torch.optim.AdamW(self.policy.parameters(), weight_decay=0.0, eps=1e-5)}
