"""Proximal policy optimisation (Schulman et al. 2017) with a clipped surrogate, for rollouts of any autoreset mode.

For stale rollouts it may be decoupled (Hilton et al. 2021, "Batch size-invariance for policy optimization"): ratios are
clipped around the proximal policy, that of the start of the update, and the behaviour policy, which acted, is corrected
for by importance weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from quintain.algorithms.base import Algorithm, Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.settings import PPOSettings
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fields import Declared, like
from quintain.data.rollout import Batch
from quintain.policies.base import Policy
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Metrics


BEHAVIOR_RATIO, SQUARED_RATIO = "train/behavior_ratio", "train/behavior_ratio_squared"
"""Means of the ratio to the policy that acted, over the first minibatch: before it the update has changed nothing."""
MAX_LOG_RATIO = 40.0
"""Far beyond any clip, and small enough for the square of its exponential."""

EpochSteps = Callable[[int], Iterator[Mapping[str, Any]]]
"""Takes the steps of an epoch, one per minibatch, and yields their metrics."""


class StepAccelerator(Protocol):
    """Takes the steps of an update in place of autograd: equal up to rounding, in less time."""

    def prepare(self, batch: Batch, progress: Progress, learning_rate: float) -> EpochSteps:
        """Prepares a batch and returns the function that takes the steps of its epochs."""


class PPO(Algorithm):
    """Clipped surrogate objective with a value loss and an entropy bonus."""

    not_state = Algorithm.not_state | {"accelerator", "is_decoupled"}

    def __init__(
        self,
        settings: PPOSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        super().__init__(settings, policy, signals, rng)
        self.settings: PPOSettings = settings
        self.adapted_learning_rate = settings.learning_rate.start
        self.is_decoupled = settings.stale_correction == "decoupled"
        """Whether ratios are clipped around the policy at the start of the update, not around the one that acted."""
        if settings.clip_per_component:
            policy.keep_components()
        more = (*([f.COMPONENTS] if settings.clip_per_component else []), *PPO.declare_fields(self))
        self.minibatch_fields = (*type(self).minibatch_fields, *more)  # type: ignore[misc]  # as settings say
        self.accelerator: StepAccelerator | None = None
        """Takes the steps of updates if set; `quintain.compiled.accelerate` sets it."""

    @property
    def policy_coef(self) -> float:
        """The coefficient of the policy loss, beside those of the value loss and of the entropy bonus."""
        return 1.0

    def declare_fields(self) -> Declared:
        """Declares the fields of decoupled PPO; none without it."""
        if not self.is_decoupled:
            return {}
        components = {f.PROXIMAL_COMPONENTS: like(f.COMPONENTS)} if self.settings.clip_per_component else {}
        return {f.PROXIMAL: like(f.LOG_PROB), **components, f.BEHAVIOR_WEIGHT: like(f.LOG_PROB)}

    def estimate(self, batch: Batch) -> None:
        self.write_advantages(batch, self.settings.gae_lambda)
        if self.settings.normalize_advantage:
            self.normalize_advantages(batch)

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        settings = self.settings
        learning_rate = (
            settings.learning_rate.at(progress.fraction) if settings.adaptive_kl is None else self.adapted_learning_rate
        )
        staleness = self.write_proximal(batch) if self.is_decoupled else {}
        take_steps = self._steps(batch, progress, learning_rate)
        sums: dict[str, Any] = {}
        first, num_minibatches = sums, 0
        for epoch in range(settings.num_epochs):
            kl_before, epoch_start = sums.get("train/approx_kl"), num_minibatches
            for parts in take_steps(epoch):
                first = first or dict(parts)
                sums = {name: sums[name] + part if sums else part for name, part in parts.items()}
                num_minibatches += 1
            if settings.target_kl is not None:
                moved = torch.as_tensor(sums["train/approx_kl"] - (0.0 if kl_before is None else kl_before))
                self.world.average(moved)  # else ranks would stop after different epochs, and wait for each other
                if float(moved) / (num_minibatches - epoch_start) > settings.target_kl:
                    break
        sums |= {name: first[name] * num_minibatches for name in (BEHAVIOR_RATIO, SQUARED_RATIO) if name in first}
        metrics = self.report(sums, num_minibatches, progress)
        squared, is_stale = metrics.pop(SQUARED_RATIO, None), self.is_stale(batch, progress)
        if squared is not None and is_stale:
            metrics["train/effective_sample_size"] = metrics[BEHAVIOR_RATIO] ** 2 / squared
        if not is_stale:
            metrics.pop(BEHAVIOR_RATIO, None)
        self._adapt_learning_rate(metrics["train/approx_kl"])
        return {
            **metrics,
            **self.stream_metrics(batch),
            **staleness,
            "train/explained_variance": self.explained_variance(batch),
            "train/learning_rate": learning_rate,
            "train/num_epochs": epoch + 1,
        }

    def is_stale(self, batch: Batch, progress: Progress) -> bool:
        """Whether an older version than the current one took any step of the batch."""
        versions = batch.rollout.array(f.POLICY_VERSION)[:-1].reshape(-1)[batch.valid_rows.cpu().numpy()]
        return bool(len(versions)) and int(versions.min()) < progress.version

    def write_proximal(self, batch: Batch) -> Metrics:
        """Writes log-probabilities by the current policy and weights of the behaviour policy; returns how they differ.

        The effective sample size is the part of the batch that as many steps of the current policy would be worth.
        """
        settings, rollout = self.settings, batch.rollout
        components = [f.COMPONENTS] if settings.clip_per_component else []
        seen = self.evaluate_batch(
            batch, (f.OBS, f.ACTION, f.LOG_PROB, *components), settings.micro_batch_size or settings.batch_size
        )
        rollout.flat(f.PROXIMAL).copy_(seen[f.LOG_PROB])
        for name in components:
            rollout.flat(f.PROXIMAL_COMPONENTS).copy_(seen[name])
        # Far beyond any cap, and small enough to be squared.
        ratio = (seen[f.LOG_PROB] - rollout.flat(f.LOG_PROB)).clamp(max=80.0).exp()
        rollout.flat(f.BEHAVIOR_WEIGHT).copy_(ratio.clamp(max=settings.max_behavior_weight))
        valid = ratio[batch.valid_rows].double()
        count, total, squares = self.world.sum([float(len(valid)), float(valid.sum()), float(valid.square().sum())])
        largest = max(each for [each] in self.world.gather([float(valid.max()) if len(valid) else 0.0]))
        return {
            BEHAVIOR_RATIO: total / count,
            "train/behavior_ratio_max": largest,
            "train/effective_sample_size": total * total / (count * squares),
        }

    def _steps(self, batch: Batch, progress: Progress, learning_rate: float) -> EpochSteps:
        """Returns the function that takes the steps of an epoch, one per minibatch, and yields their metrics."""
        settings, fraction = self.settings, progress.fraction
        if self.accelerator is not None:
            return self.accelerator.prepare(batch, progress, learning_rate * self.learning_rate_scale)

        def take_steps(epoch: int) -> Iterator[Mapping[str, Any]]:
            for minibatch in self.minibatches(batch, settings.batch_size, progress.updates, epoch):
                yield self.gradient_step(self.mirrored(minibatch), fraction, learning_rate, settings.micro_batch_size)

        return take_steps

    def _adapt_learning_rate(self, approx_kl: float) -> None:
        """Adapts the learning rate to the KL divergence per update, within bounds (as rsl_rl does)."""
        wanted = self.settings.adaptive_kl
        if wanted is None:
            return
        if approx_kl > 2.0 * wanted:
            self.adapted_learning_rate = max(1e-5, self.adapted_learning_rate / 1.5)
        elif 0.0 < approx_kl < 0.5 * wanted:
            self.adapted_learning_rate = min(1e-2, self.adapted_learning_rate * 1.5)

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        then, now = self.evaluate_minibatch(minibatch)
        surrogate = self.surrogate(then, now, fraction)
        value_loss = self.value_loss(now[f.VALUE], then[f.VALUE], then[f.RETURN], fraction)
        total = surrogate.total + self.settings.value_coef * value_loss
        # In the order in which kernels report.
        first = {"train/policy_loss": surrogate.parts["train/policy_loss"], "train/value_loss": value_loss.detach()}
        return Loss(total, {**first, **surrogate.parts})

    def surrogate(self, then: Minibatch, now: Minibatch, fraction: float) -> Loss:
        """Returns the policy loss: the clipped surrogate minus the entropy bonus."""
        clip, entropy_coef = self.settings.clip_coef.at(fraction), self.settings.entropy_coef.at(fraction)
        advantage, old, old_components = then[f.ADVANTAGE], f.LOG_PROB, f.COMPONENTS
        if self.is_decoupled:
            # A weight w > 0 goes inside: w min(ratio A, clip(ratio) A) = min(ratio wA, clip(ratio) wA).
            advantage, old, old_components = then[f.BEHAVIOR_WEIGHT] * advantage, f.PROXIMAL, f.PROXIMAL_COMPONENTS
        log_ratio = now[f.LOG_PROB] - then[old]
        if self.settings.clip_per_component:
            advantage, ratio = advantage.unsqueeze(1), (now[f.COMPONENTS] - then[old_components]).exp()
        else:
            ratio = log_ratio.exp()
        policy_loss = -torch.min(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip)).mean()
        entropy = now[f.ENTROPY].mean()
        with torch.no_grad():
            # Unbiased and always positive: (ratio - 1) - log ratio (http://joschu.net/blog/kl-approx.html).
            approx_kl = (log_ratio.exp() - 1.0 - log_ratio).mean()
            behavior_ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
            clip_fraction = ((ratio - 1.0).abs() > clip).float().mean()
        return Loss(
            self.policy_coef * policy_loss - entropy_coef * entropy,
            {
                "train/policy_loss": policy_loss.detach(),
                "train/entropy": entropy.detach(),
                "train/approx_kl": approx_kl,
                "train/clip_fraction": clip_fraction,
                BEHAVIOR_RATIO: behavior_ratio.mean(),
                SQUARED_RATIO: behavior_ratio.square().mean(),
            },
        )

    def value_loss(
        self, value: torch.Tensor, old_value: torch.Tensor, target: torch.Tensor, fraction: float = 0.0
    ) -> torch.Tensor:
        """Returns the mean squared error of values; with clipping, of the worse of the value and its clipped form.

        With several value heads [B, S] it is the mean of theirs, each clipped independently.
        """
        error = (value - target).square()
        if self.settings.clip_value is not None:
            clip = self.settings.clip_value.at(fraction)
            near = old_value + (value - old_value).clamp(-clip, clip)
            error = torch.max(error, (near - target).square())
        return error.mean()
