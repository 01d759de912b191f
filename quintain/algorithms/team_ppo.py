"""PPO and REINFORCE for teams: every agent has its own loss, optimizer and update schedule.

Agents share no parameters, so a step of one agent's optimizer down its own loss is a step down the sum of all. Rows in
which an agent is not active count in no policy loss, entropy or normalization; they count in the value loss, because
rewards of later turns reach earlier ones through the values between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from quintain.algorithms.base import Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.optimizer import Optimizer
from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import TeamPPOSettings, TeamREINFORCESettings
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies.base import Policy
from quintain.policies.team import AGENT, TeamPolicy
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Metrics

ERRORS = {"l1": functional.l1_loss, "l2": functional.mse_loss, "smooth_l1": functional.smooth_l1_loss}
"""Errors of a critic by name."""


class TeamPPO(PPO):
    """Independent PPO: one clipped or penalized objective per agent, no shared critic."""

    settings: TeamPPOSettings
    policy: TeamPolicy
    not_state = PPO.not_state | {"updated_agents", "kl_seen", "estimates"}

    def __init__(
        self,
        settings: TeamPPOSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        if not isinstance(policy, TeamPolicy):
            raise SpecMismatch(f"team algorithms train a policy of type team, and not a {type(policy).__name__}")
        if not policy.agents:
            raise SettingsError(
                "algorithm: no agent of the team learns, because all are random or hand-written; give one a network",
                code="E0205",
            )
        super().__init__(settings, policy, signals, rng)
        for name, schedule in settings.update_schedules.items():
            is_known = name in policy.agent_names and len(schedule) == 3
            if not is_known or not 0 <= schedule[1] < schedule[2] <= schedule[0]:
                raise SettingsError(
                    f"algorithm.update_schedules.{name}: found {schedule}, expected one of the agents "
                    f"{', '.join(policy.agent_names)} and 0 <= start < stop <= period",
                    code="E0205",
                )
        if settings.clip_per_component or settings.micro_batch_size is not None or self.is_decoupled:
            raise SettingsError(
                "algorithm: clip_per_component, micro_batch_size and stale_correction=decoupled are not for teams, "
                "whose agents have one loss each; remove them",
                code="E0205",
            )
        self.kl_beta = dict.fromkeys(policy.agents, settings.kl_beta)
        """Coefficient of the KL penalty of each agent."""
        self.updated_agents = list(policy.agents)
        """The agents that are updated in this iteration."""
        self.kl_seen: dict[str, list[torch.Tensor]] = {}
        """KL divergences of each agent in the minibatches of this iteration."""
        self.estimates: dict[str, torch.Tensor] = {}
        """Statistics of each agent's values and advantages in this iteration, by metric."""

    def make_optimizers(self) -> dict[str, Optimizer]:
        """Makes one optimizer for each agent that learns, so that one whose turn it is not keeps every bit."""
        return {name: self.make_optimizer(f"agents.{name}.*") for name in self.policy.agents}

    def write_advantages(self, batch: Batch, gae_lambda: float) -> None:
        super().write_advantages(batch, gae_lambda)
        names = (AGENT, f.ADVANTAGE, f.VALUE, f.RETURN)
        whose, *columns = (batch.rollout.flat(name)[batch.valid_rows] for name in names)
        for number, name in enumerate(self.policy.agent_names):
            if name not in self.policy.agents:
                continue
            advantage, value, target = (column[whose == number] for column in columns)
            unexplained = advantage.var(correction=0) / target.var(correction=0).clamp(min=1e-6)
            self.estimates[f"train/{name}.mean_advantage"] = advantage.mean()
            self.estimates[f"train/{name}.mean_value"] = value.mean()
            self.estimates[f"train/{name}.mean_value_target"] = target.mean()
            self.estimates[f"train/{name}.residual_critic_variance"] = unexplained

    def normalize_advantages(self, batch: Batch) -> None:
        """Normalizes the advantages of each agent over its active steps; those of inactive steps become 0."""
        rollout = batch.rollout
        names = [AGENT, *f.names_of(f.ACTION_MASK, rollout.storage)]
        fields = {name: rollout.flat(name) for name in names}
        advantage, active = rollout.flat(f.ADVANTAGE), self.policy.is_active(fields)
        for number in range(len(self.policy.agent_names)):
            rows = ((fields[AGENT] == number) & active).nonzero().squeeze(1)
            if len(rows):
                own = advantage[rows]
                advantage[rows] = (own - own.mean()) / own.std(correction=0).clamp(min=1e-6)
        advantage[~active] = 0.0

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        schedules = self.settings.update_schedules
        self.updated_agents = [
            name
            for name in self.policy.agents
            if name not in schedules
            or schedules[name][1] <= progress.iteration % schedules[name][0] < schedules[name][2]
        ]
        self.kl_seen = {name: [] for name in self.updated_agents}
        metrics = super().update(batch, progress)
        if self.settings.loss_type == "kl_penalty":
            self.adapt_penalties()
        if not self.estimates:  # a batch that was estimated elsewhere, on all ranks alike
            return metrics
        means = torch.stack(list(self.estimates.values()))
        self.world.average(means)
        return {**metrics, **dict(zip(self.estimates, means.tolist(), strict=True))}

    def adapt_penalties(self) -> None:
        """Adapts each agent's penalty to the KL divergence in the last epoch of the update.

        Once for each update: in its first minibatches the divergence is near zero whatever the penalty, so adapting it
        after every minibatch would remove the penalty before it is needed.
        """
        settings = self.settings
        for name, seen in self.kl_seen.items():
            if not seen:
                continue
            last = seen[-max(1, len(seen) // settings.num_epochs) :]
            kl = float(torch.stack(last).mean())
            is_far, is_near = kl > 1.5 * settings.kl_target, kl < settings.kl_target / 1.5
            self.kl_beta[name] *= settings.kl_increment if is_far else settings.kl_decrement if is_near else 1.0

    def gradient_step(
        self, minibatch: Minibatch, fraction: float, learning_rate: float, micro_batch_size: int | None = None
    ) -> dict[str, Any]:
        """Takes one step of each agent whose turn it is, down its own loss."""
        losses = self.agent_losses(minibatch, fraction)
        sums: dict[str, Any] = {}
        for name, loss in losses.items():
            if name in self.updated_agents and loss.total.requires_grad:
                self.step_optimizer(name, loss.total, learning_rate, minibatch)
                self.kl_seen[name].append(loss.parts["train/approx_kl"])
            for key, part in loss.parts.items():
                sums[key] = sums.get(key, 0.0) + part / (len(losses) if key == "train/approx_kl" else 1)
                sums[f"train/{name}.{key.removeprefix('train/')}"] = part
        return sums

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        """Returns the sum of all agents' losses."""
        losses = self.agent_losses(minibatch, fraction)
        parts = [loss.parts for loss in losses.values()]
        return Loss(
            torch.stack([loss.total for loss in losses.values()]).sum(),
            {name: torch.stack([each[name] for each in parts]).sum() for name in parts[0]},
        )

    def agent_losses(self, minibatch: Minibatch, fraction: float) -> dict[str, Loss]:
        """Returns each agent's loss: policy and entropy over its active rows, values over all its rows."""
        losses = {}
        for number, name in enumerate(self.policy.agent_names):
            if name not in self.policy.agents:
                continue
            # A graph of its own: each agent's optimizer goes through it alone.
            rows = (minibatch[AGENT] == number).nonzero().squeeze(1)
            then, now = self.evaluate_minibatch({key: field[rows] for key, field in minibatch.items()})
            active = self.policy.is_active(then).float()
            weight = active / active.sum().clamp(min=1.0)
            policy_loss, kl = self.policy_loss(then, now, weight, fraction, name)
            entropy = (weight * now[f.ENTROPY]).sum()
            error = self.critic_error(now[f.VALUE], then[f.VALUE], then[f.RETURN], fraction)
            total = policy_loss - self.settings.entropy_coef.at(fraction) * entropy + self.value_weight * error
            parts = {"policy_loss": policy_loss, "value_loss": error, "entropy": entropy, "approx_kl": kl}
            losses[name] = Loss(total, {f"train/{key}": value.detach() for key, value in parts.items()})
        return losses

    def critic_error(
        self, value: torch.Tensor, old_value: torch.Tensor, target: torch.Tensor, fraction: float
    ) -> torch.Tensor:
        """Returns the mean error of a critic; with clipping, of the worse of a value and its clipped form."""
        error_of, clip = ERRORS[self.settings.value_loss], self.settings.clip_value
        error = error_of(value, target, reduction="none")
        if clip is not None:
            bound = clip.at(fraction)
            near = old_value + (value - old_value).clamp(-bound, bound)
            error = torch.max(error, error_of(near, target, reduction="none"))
        return error.sum() / max(1, len(value))

    @property
    def value_weight(self) -> float:
        """Coefficient of the value loss."""
        return self.settings.value_coef

    def policy_loss(
        self, then: Minibatch, now: Minibatch, weight: torch.Tensor, fraction: float, name: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the weighted surrogate and the KL divergence to the policy that acted."""
        log_ratio = now[f.LOG_PROB] - then[f.LOG_PROB]
        ratio, advantage = log_ratio.exp(), then[f.ADVANTAGE]
        # Unbiased and never negative: (ratio - 1) - log ratio.
        kl = (weight * (ratio - 1.0 - log_ratio)).sum()
        if self.settings.loss_type == "kl_penalty":
            return self.kl_beta[name] * kl - (weight * advantage * ratio).sum(), kl
        clip = self.settings.clip_coef.at(fraction)
        gain = torch.min(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip))
        return -(weight * gain).sum(), kl


class TeamREINFORCE(TeamPPO):
    """REINFORCE per agent: log-probabilities weighted by the reward-to-go, or by normalized advantages of a critic."""

    settings: TeamREINFORCESettings

    def estimate(self, batch: Batch) -> None:
        """Writes advantages: GAE with a critic; without one the discounted reward-to-go of the episode."""
        if self.settings.use_critic:
            super().estimate(batch)
            return
        for rollout in batch:
            for name in (f.VALUE, f.FINAL_VALUE):
                rollout.storage[name].zero_()
        self.write_advantages(batch, gae_lambda=1.0)

    @property
    def value_weight(self) -> float:
        """Without a critic no value is fitted."""
        return self.settings.value_coef if self.settings.use_critic else 0.0

    def policy_loss(
        self, then: Minibatch, now: Minibatch, weight: torch.Tensor, fraction: float, name: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_ratio = (now[f.LOG_PROB] - then[f.LOG_PROB]).detach()
        kl = (weight * (log_ratio.exp() - 1.0 - log_ratio)).sum()
        return -(weight * then[f.ADVANTAGE] * now[f.LOG_PROB]).sum(), kl
