"""A policy of two networks that share nothing: the actor chooses, the critic says what to expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import BehaviorSpec, DiscreteSpec
from quintain.policies.base import Policy, clip_bounds
from quintain.policies.distributions import CategoricalHead, GaussianHead
from quintain.policies.networks import Mlp, mlp
from quintain.policies.normalizer import ObsNormalizer
from quintain.policies.settings import ActorCriticSettings
from quintain.rng import Rng

if TYPE_CHECKING:
    from quintain.typing import Array


class ActorCritic(Policy):
    """MLP actor and critic for Discrete and Box actions."""

    action_low: torch.Tensor
    action_high: torch.Tensor

    def __init__(self, settings: ActorCriticSettings, spec: BehaviorSpec, rng: Rng) -> None:
        super().__init__()
        self.settings = settings
        self.spec = spec
        self.head = (
            CategoricalHead(spec.action)
            if isinstance(spec.action, DiscreteSpec)
            else GaussianHead(spec.action, settings.initial_log_std)
        )
        self.noise = self.head.noise
        generator = rng.torch_generator("init")

        def network(output_size: int, output_gain: float) -> Mlp:
            return mlp(
                spec.obs.size,
                settings.hidden_sizes,
                output_size,
                activation=settings.activation,
                output_gain=output_gain,
                generator=generator,
            )

        self.actor = network(self.head.output_size, 0.01)
        self.critic = network(1, 1.0)
        self.normalizer = ObsNormalizer(spec.obs.size, settings.obs_clip) if settings.normalize_obs else None
        bounds = clip_bounds(spec) if settings.clip_actions else None
        self.has_bounds = bounds is not None
        if bounds is not None:
            self.register_buffer("action_low", bounds[0], persistent=False)
            self.register_buffer("action_high", bounds[1], persistent=False)

    def act(self, slot: Slot, *, deterministic: bool = False) -> None:
        features = self._features(slot.obs)
        output = self.actor(features)
        if deterministic:
            self.head.mode(output, slot.action, slot.log_prob)
        else:
            self.head.sample(output, slot.noise, slot.action, slot.log_prob)
        slot.value.copy_(self.critic(features).squeeze(-1))

    def value_of(self, obs: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.critic(self._features(obs)).squeeze(-1)
        return value

    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        features = self._features(batch[f.OBS])
        log_prob, entropy = self.head.evaluate(self.actor(features), batch[f.ACTION])
        return {f.LOG_PROB: log_prob, f.ENTROPY: entropy, f.VALUE: self.critic(features).squeeze(-1)}

    def env_action(self, action: torch.Tensor) -> torch.Tensor:
        return torch.clamp(action, self.action_low, self.action_high) if self.has_bounds else action

    def observe(self, obs: Array) -> None:
        if self.normalizer is not None:
            self.normalizer.update(obs.reshape(len(obs), -1))

    def _features(self, obs: torch.Tensor) -> torch.Tensor:
        features = obs.reshape(obs.shape[0], -1).float()
        return features if self.normalizer is None else self.normalizer(features)
