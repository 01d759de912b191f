"""Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018).

Two critics learn from replay, and the TD target takes the lower of their values (clipped double Q-learning). Target
actions have clipped noise, which smooths the critics around them (target policy smoothing). The policy and the target
networks are updated once for several updates of the critics (delayed updates), by an optimizer of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from quintain.algorithms.base import Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.off_policy import NEXT_NOISE, OffPolicy, next_of, target_network
from quintain.algorithms.optimizer import Optimizer
from quintain.algorithms.settings import TD3Settings
from quintain.algorithms.twin_critics import TwinCritics
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.policies.deterministic_actor import DeterministicActor
from quintain.policies.heads import NoiseSpec
from quintain.policies.spec_rules import observed
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Array


class TD3(OffPolicy):
    """Off-policy actor-critic: a deterministic policy that follows the gradient of the first of two critics."""

    policy: DeterministicActor
    settings: TD3Settings

    def __init__(
        self,
        settings: TD3Settings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        if not isinstance(policy, DeterministicActor):
            raise SettingsError(
                f"td3 moves continuous actions by their gradients, and a {type(policy).__name__} draws its actions; "
                f"use policy.type deterministic_actor",
                code="E0224",
            )
        super().__init__(settings, policy, signals, rng)
        sees, draw = observed(policy.spec, "critic", policy.settings.critic_obs), self.rng.torch_generator("critics")
        self.critics = TwinCritics(sees, policy.noise.num_normal, 0, policy.settings, draw).to(policy.device)
        self.target_critics = target_network(self.critics)
        self.target_actor = target_network(policy.network)

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.policy.named_parameters()
        yield from self.critics.named_parameters(prefix="critics")

    def make_optimizers(self) -> dict[str, Optimizer]:
        return {"critics": self.make_optimizer("critics.*"), "actor": self.make_optimizer("network.*", "auxiliary.*")}

    @property
    def minibatch_noise(self) -> tuple[NoiseSpec, NoiseSpec]:
        return NoiseSpec(), self.policy.noise

    def gradient_step(
        self, minibatch: Minibatch, fraction: float, learning_rate: float, micro_batch_size: int | None = None
    ) -> dict[str, torch.Tensor | float]:
        parts = self.step_on("critics", self.loss, minibatch, fraction, learning_rate)
        if self.moves_policy:
            parts |= self.step_on("actor", self.policy_loss, minibatch, fraction, learning_rate)
        return parts

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        """Returns the critics' loss: the sum of their mean squared errors."""
        values = self.critics.values(self.critics.encode(minibatch), self.policy.continuous_of(minibatch))[..., 0]
        loss = (values - self.targets_of(minibatch)).square().mean(dim=1).sum()
        return Loss(loss, {"train/critic_loss": loss.detach(), "train/q_value": values.detach().mean()})

    @torch.no_grad()
    def targets_of(self, minibatch: Minibatch) -> torch.Tensor:
        """Returns r + discount * min_i Q'_i(s', a') [B], where a' is the target policy's action with clipped noise."""
        settings, after = self.settings, next_of(minibatch)
        bound = settings.target_noise_clip
        noise = (settings.target_noise * minibatch[NEXT_NOISE]).clamp(-bound, bound)
        action = (torch.tanh(self.target_actor(after)) + noise).clamp(-1.0, 1.0)
        careful = self.target_critics.values(self.target_critics.encode(after), action)[..., 0].amin(dim=0)
        return minibatch[f.REWARD] + minibatch[f.DISCOUNT] * careful

    def policy_loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        """Returns the actor's loss: minus the mean value of its actions by the first critic."""
        features = self.critics.encode(minibatch).detach()
        loss = -self.critics.values(features, self.policy.actions(minibatch), is_frozen=True)[0].mean()
        return Loss(loss, {"train/policy_loss": loss.detach()})

    @property
    def moves_policy(self) -> bool:
        """Whether this gradient step also updates the policy and the target networks."""
        return self.step_number % self.settings.policy_delay == 0

    def update_targets(self) -> None:
        if self.moves_policy:
            self.target_critics.soft_update_(self.critics, self.settings.tau)
            self.target_actor.soft_update_(self.policy.network, self.settings.tau)

    def observe(self, obs: Mapping[str, Array]) -> None:
        self.carry_over(self.policy.observe(obs, self.target_actor.first_layers))
        self.carry_over(self.critics.observe(obs, self.target_critics))
