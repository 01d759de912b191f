"""Soft actor-critic (Haarnoja et al. 2018) for continuous, discrete (Christodoulou 2019) and hybrid actions.

Critics, policy and entropy coefficient take each gradient step together, all three evaluated with the weights before
it: one backward pass and one Adam step over one flat vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from quintain.algorithms.base import Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.off_policy import NEXT_NOISE, OffPolicy, next_of, target_network
from quintain.algorithms.settings import SACSettings
from quintain.algorithms.temperature import Temperature, discrete_entropy
from quintain.algorithms.twin_critics import TwinCritics
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.spec import discrete_sizes
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.policies.heads import NoiseSpec
from quintain.policies.soft_actor import ActionSample, SoftActor
from quintain.policies.spec_rules import observed
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Array


class SAC(OffPolicy):
    """Off-policy actor-critic with twin critics, a replay buffer and an entropy bonus."""

    policy: SoftActor
    settings: SACSettings
    not_state: ClassVar[frozenset[str]] = OffPolicy.not_state | {"num_continuous"}

    def __init__(
        self,
        settings: SACSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        if not isinstance(policy, SoftActor):
            raise SettingsError(
                f"sac draws actions with gradients, which a {type(policy).__name__} does not; use policy.type "
                f"soft_actor",
                code="E0224",
            )
        super().__init__(settings, policy, signals, rng)
        self.settings: SACSettings = settings
        self.num_continuous = policy.num_continuous
        self.critics = self._make_critics(policy, self.rng)
        self.targets = target_network(self.critics)
        self.temperature = Temperature(settings, self.num_continuous, discrete_sizes(policy.spec.action)).to(
            policy.device
        )

    @property
    def minibatch_noise(self) -> tuple[NoiseSpec, NoiseSpec]:
        return NoiseSpec(num_normal=self.num_continuous), NoiseSpec(num_normal=self.num_continuous)

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.policy.named_parameters()
        yield from self.critics.named_parameters(prefix="critics")
        yield from self.temperature.named_parameters(prefix="temperature")

    def observe(self, obs: Mapping[str, Array]) -> None:
        super().observe(obs)
        self.carry_over(self.critics.observe(obs, self.targets))

    def update_targets(self) -> None:
        self.targets.soft_update_(self.critics, self.settings.tau)

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        target = self._target(minibatch)
        return self._loss_of(minibatch, self.critics.encode(minibatch), self.policy.encoder(minibatch), target)

    def _loss_of(self, minibatch: Minibatch, features: torch.Tensor, seen: torch.Tensor, target: torch.Tensor) -> Loss:
        """Returns the loss of transitions, given the features of critics (`features`) and policy (`seen`)."""
        mask = minibatch.get(f.ACTION_MASK)
        values = self.critics.values(features, self.policy.continuous_of(minibatch))
        taken = self._of_actions_taken(values, minibatch)
        critic_loss = 0.5 * (taken - target).square().mean(dim=1).sum()

        proposal = self.policy.sample_with_grad(seen, minibatch[f.NOISE], mask)
        judged = self.critics.values(features.detach(), proposal.continuous, is_frozen=True).amin(dim=0)
        policy_loss = -self._soft_value(judged, proposal).mean()

        total = critic_loss + policy_loss + self.temperature.loss(proposal, mask)
        return Loss(
            total,
            {
                "train/critic_loss": critic_loss.detach(),
                "train/policy_loss": policy_loss.detach(),
                "train/q_value": taken.detach().mean(),
                **self._entropy_parts(proposal),
            },
        )

    @torch.no_grad()
    def _target(self, minibatch: Minibatch) -> torch.Tensor:
        """Returns the TD target [B]: the reward plus the discounted soft value by the minimum of the target critics."""
        after = next_of(minibatch)
        return self._target_of(minibatch, self.targets.encode(after), self.policy.encoder(after))

    def _target_of(self, minibatch: Minibatch, features: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Returns the TD target, given the features of target critics and policy at next observations."""
        mask = minibatch.get(f"{f.NEXT}{f.ACTION_MASK}")
        proposal = self.policy.sample_with_grad(seen, minibatch[NEXT_NOISE], mask)
        careful = self.targets.values(features, proposal.continuous).amin(dim=0)
        return minibatch[f.REWARD] + minibatch[f.DISCOUNT] * self._soft_value(careful, proposal)

    def _soft_value(self, values: torch.Tensor, proposal: ActionSample) -> torch.Tensor:
        """Returns E[Q - alpha log pi] [B]: exactly over discrete actions, by one sample over continuous ones."""
        log_probs = proposal.discrete_log_probs
        if log_probs is None:
            soft = values[:, 0]
        else:
            soft = (log_probs.exp() * (values - self.temperature.coef("discrete") * log_probs)).sum(dim=1)
        return soft if proposal.log_prob is None else soft - self.temperature.coef("continuous") * proposal.log_prob

    def _of_actions_taken(self, values: torch.Tensor, minibatch: Minibatch) -> torch.Tensor:
        """Returns each critic's value of the actions taken, [2, B]."""
        chosen = self.policy.discrete_of(minibatch)
        return values[..., 0] if chosen is None else values.gather(2, chosen.expand(2, -1, -1)).sum(dim=2)

    def _entropy_parts(self, proposal: ActionSample) -> dict[str, torch.Tensor]:
        entropies = {}
        if proposal.log_prob is not None:
            entropies["continuous"] = -proposal.log_prob.detach().mean()
        if proposal.discrete_log_probs is not None:
            entropies["discrete"] = discrete_entropy(proposal.discrete_log_probs.detach()).mean()
        is_hybrid = len(entropies) > 1
        reported = {}
        for kind, entropy in entropies.items():
            suffix = f"_{kind}" if is_hybrid else ""
            reported[f"train/entropy{suffix}"] = entropy
            reported[f"train/entropy_coef{suffix}"] = torch.as_tensor(self.temperature.coef(kind))
        return reported

    def _make_critics(self, policy: SoftActor, rng: Rng) -> TwinCritics:
        spec, settings = policy.spec, policy.settings
        return TwinCritics(
            observed(spec, "critic", settings.critic_obs),
            policy.num_continuous,
            sum(discrete_sizes(spec.action)),
            settings,
            rng.torch_generator("critics"),
        ).to(policy.device)
