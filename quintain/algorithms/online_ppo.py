"""PPO as MineStudio trains pretrained policies online: held near a frozen reference by a KL divergence.

Value functions begin by a warm-up of their own and predict normalised returns, log-ratios have bounds, and AdamW decays
weights. As everywhere here, ratios are taken to the policy that acted, whose probabilities are recorded.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from quintain.algorithms.base import Loss
from quintain.algorithms.minibatches import Minibatch, num_valid, only_valid
from quintain.algorithms.online_settings import OnlinePPOSettings
from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import ParameterGroup
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.policies.base import Policy
from quintain.policies.distribution import ActionDistribution
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Metrics

REFERENCE_KL = "reference_kl"


class OnlinePPO(PPO):
    """PPO with a KL penalty to a reference policy, a value warm-up and normalised values."""

    not_state = PPO.not_state | {"iteration", "old_moments"}

    def __init__(
        self,
        settings: OnlinePPOSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        if settings.weight_decay:
            rest = ParameterGroup(parameters="*", weight_decay=settings.weight_decay)
            settings = settings.model_copy(update={"parameter_groups": {**settings.parameter_groups, "rest": rest}})
        super().__init__(settings, policy, signals, rng)
        self.settings: OnlinePPOSettings = settings
        if settings.normalize_values:
            policy.normalize_values()
        if settings.zero_initial_values:
            policy.zero_values()
        has_reference = settings.kl_coef > 0.0 or settings.value_warmup > 0
        self.reference = copy.deepcopy(policy).requires_grad_(False) if has_reference else None
        self.best_reward: float | None = None
        """The largest sum of rewards of a batch, where it updates the reference."""
        self.iteration = 0
        self.old_moments: tuple[torch.Tensor | float, torch.Tensor | float] = (0.0, 1.0)
        """Mean and deviation of returns that values of the batch were predicted with."""

    def begin_from_policy(self) -> None:
        if self.settings.zero_initial_values:
            self.policy.zero_values()
        if self.reference is not None:
            self.reference.load_state_dict(self.policy.state_dict())

    @property
    def is_warming_up(self) -> bool:
        """Whether only the value function learns in this iteration."""
        return self.iteration < self.settings.value_warmup

    @property
    def kl_coef(self) -> float:
        """The coefficient rho of the KL penalty in this iteration; 1 in the warm-up."""
        return 1.0 if self.is_warming_up else self.settings.kl_coef * self.settings.kl_decay**self.iteration

    @property
    def policy_coef(self) -> float:
        return self.settings.policy_coef

    def makes_version(self, progress: Progress) -> bool:
        return progress.updates >= self.settings.value_warmup

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        self.iteration = progress.updates
        self.old_moments = (self.policy.value_mean, self.policy.value_scale)
        if self.settings.update_reference and self.reference is not None:
            valid = batch.rollout.array(f.VALID)[:-1]
            [reward] = self.world.sum([float(self.reward(batch.rollout)[valid].sum())])
            if self.best_reward is None or reward > self.best_reward:
                self.best_reward = reward
                self.reference.load_state_dict(self.policy.state_dict())
        return {**super().update(batch, progress), "train/kl_coef": self.kl_coef}

    def gradient_step(
        self, minibatch: Minibatch, fraction: float, learning_rate: float, micro_batch_size: int | None = None
    ) -> dict[str, torch.Tensor | float]:
        """Updates the statistics of returns once, over all ranks, and takes one step of the optimizer."""
        if self.settings.normalize_values:
            counted = minibatch.get(f.VALID)
            # In double precision: the variance is a small difference of large numbers, and ranks add in another order.
            returns = (minibatch[f.RETURN] if counted is None else minibatch[f.RETURN][counted]).double()
            moments = torch.stack((num_valid(minibatch).to(returns), returns.sum(), returns.square().sum()))
            self.world.average(moments)
            count, total, squares = moments
            self.policy.observe_returns(total / count, squares / count)
        return super().gradient_step(minibatch, fraction, learning_rate, micro_batch_size)

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        settings = self.settings
        if self.reference is None:
            return super().loss(minibatch, fraction)
        mask = minibatch.get(f.ACTION_MASK)
        judged, head, output = self.policy.evaluate_outputs(minibatch)
        policy = ActionDistribution(head, output, mask)
        with torch.no_grad():
            # From the hidden states that the acting policy had: the reference has not forgotten the episode so far.
            _, head, output = self.reference.evaluate_outputs(minibatch)
        reference = ActionDistribution(head, output, mask)
        kl = policy.kl(reference) if settings.kl_direction == "to_reference" else reference.kl(policy)
        then, now = only_valid(minibatch, {**judged, REFERENCE_KL: kl})
        value_loss = self.value_loss(now[f.VALUE], then[f.VALUE], then[f.RETURN], fraction)
        surrogate, reference_kl = self.surrogate(then, now, fraction), now[REFERENCE_KL].mean()
        total = settings.value_coef * value_loss + self.kl_coef * reference_kl
        if not self.is_warming_up:
            total = total + surrogate.total
        parts = {"train/value_loss": value_loss.detach(), "train/reference_kl": reference_kl.detach()}
        return Loss(total, {**surrogate.parts, **parts})

    def surrogate(self, then: Minibatch, now: Minibatch, fraction: float) -> Loss:
        """Returns PPO's policy loss of bounded log-ratios.

        An action with a negative advantage is not made less likely than `exp(min_log_prob)`, and no ratio exceeds
        `exp(log_ratio_range)`, where it would overflow.
        """
        settings, old, new = self.settings, then[f.PROXIMAL if self.is_decoupled else f.LOG_PROB], now[f.LOG_PROB]
        if settings.min_log_prob is not None:
            new = torch.where(then[f.ADVANTAGE] < 0.0, new.clamp(min=settings.min_log_prob), new)
        new = torch.minimum(new, old + settings.log_ratio_range)
        return super().surrogate(then, {**now, f.LOG_PROB: new}, fraction)

    def value_loss(
        self, value: torch.Tensor, old_value: torch.Tensor, target: torch.Tensor, fraction: float = 0.0
    ) -> torch.Tensor:
        """Returns half of the mean squared error in units of the deviation of returns, as clip_value is too.

        Clipping compares outputs of the value head, which statistics that moved in between have not changed.
        """
        mean, scale = self.policy.value_mean, self.policy.value_scale
        old_mean, old_scale = self.old_moments
        old = (old_value - old_mean) / old_scale + mean / scale
        return 0.5 * super().value_loss(value / scale, old, target / scale, fraction)
