"""Proximal policy optimisation (Schulman et al. 2017) with a clipped surrogate, for rollouts of any autoreset mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from quintain.algorithms.base import Algorithm, Loss, report
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.returns import explained_variance, generalized_advantages
from quintain.algorithms.settings import PPOSettings
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.progress import Progress

if TYPE_CHECKING:
    from quintain.typing import Metrics


class PPO(Algorithm):
    """Improves the policy where it did better than the critic expected, without moving far at once."""

    settings: PPOSettings

    def estimate(self, batch: Batch) -> None:
        for rollout in batch:
            self._write_advantages(rollout)
        if self.settings.normalize_advantage:
            # Over the whole batch, not per minibatch: ranks can agree on it, and the remainder is not special.
            advantage = batch.rollout.flat(f.ADVANTAGE)
            valid = advantage[batch.valid_rows]
            spread, mean = torch.std_mean(valid, correction=0)
            advantage.sub_(mean).div_(spread + 1e-8)

    def _write_advantages(self, rollout: Rollout) -> None:
        value, final_value, terminated, done, valid = (
            rollout.array(name) for name in (f.VALUE, f.FINAL_VALUE, f.TERMINATED, f.DONE, f.VALID)
        )
        advantage = generalized_advantages(
            self.reward(rollout),
            value,
            final_value[:-1],
            terminated[:-1],
            done[:-1],
            valid[:-1],
            gamma=self.gamma,
            gae_lambda=self.settings.gae_lambda,
        )
        rollout.storage[f.ADVANTAGE][:-1].copy_(torch.from_numpy(advantage))
        rollout.storage[f.RETURN][:-1].copy_(torch.from_numpy(advantage + value[:-1]))

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        settings, fraction = self.settings, progress.fraction
        learning_rate = settings.learning_rate.at(fraction)
        sums: dict[str, torch.Tensor] = {}
        num_minibatches = 0
        for epoch in range(settings.num_epochs):
            kl_before, epoch_start = sums.get("train/approx_kl"), num_minibatches
            for minibatch in self.minibatches(batch, settings.batch_size, progress.updates, epoch):
                loss = self.loss(minibatch, fraction)
                loss.parts["train/grad_norm"] = self.optimizer.step(loss.total, learning_rate)
                sums = {name: sums[name] + part if sums else part for name, part in loss.parts.items()}
                num_minibatches += 1
            if settings.target_kl is not None:
                moved = sums["train/approx_kl"] - (0.0 if kl_before is None else kl_before)
                if float(moved) / (num_minibatches - epoch_start) > settings.target_kl:
                    break
        where = f"step {progress.env_steps}"
        value, target = (batch.rollout.flat(name)[batch.valid_rows].cpu().numpy() for name in (f.VALUE, f.RETURN))
        return {
            **report(sums, num_minibatches, where),
            "train/explained_variance": explained_variance(value, target),
            "train/learning_rate": learning_rate,
            "train/num_epochs": epoch + 1,
        }

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        clip, entropy_coef = self.settings.clip_coef.at(fraction), self.settings.entropy_coef.at(fraction)
        then, now = self.judge(minibatch)
        advantage, target, old_value = then[f.ADVANTAGE], then[f.RETURN], then[f.VALUE]

        log_ratio = now[f.LOG_PROB] - then[f.LOG_PROB]
        ratio = log_ratio.exp()
        policy_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip)).mean()

        error = (now[f.VALUE] - target).square()
        if self.settings.clip_value is not None:
            near = old_value + (now[f.VALUE] - old_value).clamp(-self.settings.clip_value, self.settings.clip_value)
            error = torch.max(error, (near - target).square())
        value_loss = error.mean()

        entropy = now[f.ENTROPY].mean()
        total = policy_loss + self.settings.value_coef * value_loss - entropy_coef * entropy
        with torch.no_grad():
            # Unbiased and always positive: (ratio - 1) - log ratio (http://joschu.net/blog/kl-approx.html).
            approx_kl = (ratio - 1.0 - log_ratio).mean()
            clip_fraction = ((ratio - 1.0).abs() > clip).float().mean()
        return Loss(
            total,
            {
                "train/policy_loss": policy_loss.detach(),
                "train/value_loss": value_loss.detach(),
                "train/entropy": entropy.detach(),
                "train/approx_kl": approx_kl,
                "train/clip_fraction": clip_fraction,
            },
        )
