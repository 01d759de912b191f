"""Advantage actor-critic (Mnih et al. 2016), synchronous: one gradient step on each batch of fresh experience."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.algorithms.base import Algorithm, Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.settings import A2CSettings
from quintain.core.progress import Progress
from quintain.data import fields as f
from quintain.data.rollout import Batch

if TYPE_CHECKING:
    from quintain.typing import Metrics


class A2C(Algorithm):
    """Increases the probability of actions with a positive advantage."""

    settings: A2CSettings

    def estimate(self, batch: Batch) -> None:
        self.write_advantages(batch, self.settings.gae_lambda)
        if self.settings.normalize_advantage:
            self.normalize_advantages(batch)

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        return {**super().update(batch, progress), "train/explained_variance": self.explained_variance(batch)}

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        then, now = self.evaluate_minibatch(minibatch)
        policy_loss = -(then[f.ADVANTAGE] * now[f.LOG_PROB]).mean()
        value_loss = (now[f.VALUE] - then[f.RETURN]).square().mean()
        entropy = now[f.ENTROPY].mean()
        total = policy_loss + self.settings.value_coef * value_loss - self.settings.entropy_coef.at(fraction) * entropy
        return Loss(
            total,
            {
                "train/policy_loss": policy_loss.detach(),
                "train/value_loss": value_loss.detach(),
                "train/entropy": entropy.detach(),
            },
        )
