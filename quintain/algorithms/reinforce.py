"""REINFORCE (Williams 1992): one gradient step on the returns of whole episodes.

Every rollout begins a new episode in each lane. An episode is complete if it ends before `rollout.num_steps`. Where it
is cut, by a time limit or by the end of the rollout, a policy with a value function (`actor_critic`) stands in for the
rest of the return with the value of the last observation; without one (`actor_only`) the return is the rewards until
the cut. The value is also the baseline: it is subtracted from returns, and fitted to them.
"""

from __future__ import annotations

from quintain.algorithms.base import Algorithm, Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.settings import REINFORCESettings
from quintain.data import fields as f
from quintain.data.rollout import Batch


class REINFORCE(Algorithm):
    """Policy gradient weighted by the return that followed each action, minus the baseline."""

    settings: REINFORCESettings
    starts_fresh = True

    def estimate(self, batch: Batch) -> None:
        """Writes returns, and returns less the baseline as advantages: with lambda 1 no value stands between rewards.

        Without a baseline all values are 0.
        """
        self.write_advantages(batch, gae_lambda=1.0)
        if self.settings.normalize_advantage:
            self.normalize_advantages(batch)

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        then, now = self.evaluate_minibatch(minibatch)
        policy_loss = -(then[f.ADVANTAGE] * now[f.LOG_PROB]).mean()
        entropy = now[f.ENTROPY].mean()
        total = policy_loss - self.settings.entropy_coef.at(fraction) * entropy
        parts = {"train/policy_loss": policy_loss.detach(), "train/entropy": entropy.detach()}
        if self.policy.has_values:
            value_loss = (now[f.VALUE] - then[f.RETURN]).square().mean()
            total = total + self.settings.value_coef * value_loss
            parts["train/value_loss"] = value_loss.detach()
        return Loss(total, parts)
