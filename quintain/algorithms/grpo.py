"""Group relative policy optimisation (Shao et al. 2024) for environments: compares returns within groups.

The lanes of a group start every rollout from the same seed, so they differ only by the policy's actions. There is no
critic: the baseline of a step is the mean return-to-go of the group's other members.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.algorithms.base import Algorithm, Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.settings import GRPOSettings
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.policies.base import Policy
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Array, Metrics


class GRPO(Algorithm):
    """Increases the probability of actions with a higher return than the rest of their group."""

    starts_fresh = True
    needs_groups = True
    minibatch_fields = (f.OBS, f.ACTION, f.LOG_PROB, f.ADVANTAGE)

    def __init__(
        self,
        settings: GRPOSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        super().__init__(settings, policy, signals, rng)
        self.settings: GRPOSettings = settings
        self.reference = copy.deepcopy(policy).requires_grad_(False) if settings.kl_coef > 0.0 else None

    def begin_from_policy(self) -> None:
        if self.reference is not None:
            self.reference.load_state_dict(self.policy.state_dict())

    def estimate(self, batch: Batch) -> None:
        for rollout in batch:
            valid = rollout.array(f.VALID)[:-1]
            to_go = returns_to_go(self.reward(rollout), valid, self.gamma)
            advantage = group_relative(to_go, valid, self.group_size)
            rollout.storage[f.ADVANTAGE][:-1].copy_(torch.from_numpy(advantage))
            rollout.storage[f.RETURN][:-1].copy_(torch.from_numpy(to_go))

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        settings, fraction = self.settings, progress.fraction
        learning_rate = settings.learning_rate.at(fraction)
        sums: dict[str, torch.Tensor] = {}
        num_minibatches = 0
        for epoch in range(settings.num_epochs):
            for minibatch in self.minibatches(batch, settings.batch_size, progress.updates, epoch):
                parts = self.gradient_step(minibatch, fraction, learning_rate)
                sums = {name: sums[name] + part if sums else part for name, part in parts.items()}
                num_minibatches += 1
        return {**self.report(sums, num_minibatches, progress), "train/learning_rate": learning_rate}

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        clip, entropy_coef = self.settings.clip_coef.at(fraction), self.settings.entropy_coef.at(fraction)
        then, now = self.evaluate_minibatch(minibatch)
        advantage = then[f.ADVANTAGE]
        log_ratio = now[f.LOG_PROB] - then[f.LOG_PROB]
        ratio = log_ratio.exp()
        policy_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip)).mean()
        entropy = now[f.ENTROPY].mean()
        total = policy_loss - entropy_coef * entropy
        parts = {
            "train/policy_loss": policy_loss.detach(),
            "train/entropy": entropy.detach(),
            "train/approx_kl": (ratio - 1.0 - log_ratio).mean().detach(),
        }
        if self.reference is not None:
            behind = self.reference.evaluate_actions(minibatch)[f.LOG_PROB]
            gap = (behind if len(behind) == len(advantage) else behind[minibatch[f.VALID]]) - now[f.LOG_PROB]
            reference_kl = (gap.exp() - gap - 1.0).mean()
            total = total + self.settings.kl_coef * reference_kl
            parts["train/reference_kl"] = reference_kl.detach()
        return Loss(total, parts)


def returns_to_go(reward: Array, valid: Array, gamma: float) -> Array:
    """Returns the discounted rewards [T, N] from each step to the end of its episode or of the rollout."""
    following = np.zeros_like(reward[0])
    to_go = np.empty_like(reward)
    for t in range(len(reward) - 1, -1, -1):
        following = np.where(valid[t], reward[t] + np.float32(gamma) * following, np.float32(0.0))
        to_go[t] = following
    return to_go


def group_relative(to_go: Array, valid: Array, group_size: int) -> Array:
    """Normalizes each step's return by mean and deviation over the members of its group that are still active."""
    steps, lanes = to_go.shape
    grouped, alive = (x.reshape(steps, lanes // group_size, group_size) for x in (to_go, valid))
    # In float32 the mean of equal returns may round to another number, and dividing would make that a difference.
    grouped = grouped.astype(np.float64)
    count = np.maximum(alive.sum(axis=-1, keepdims=True), 1)
    mean = (grouped * alive).sum(axis=-1, keepdims=True) / count
    spread = np.sqrt((np.square(grouped - mean) * alive).sum(axis=-1, keepdims=True) / count)
    scaled: Array = (grouped - mean) / (spread + 1e-8) * alive
    return np.asarray(scaled.reshape(steps, lanes), dtype=np.float32)
