"""Deep Q-learning (Mnih et al. 2015), with double Q-learning (van Hasselt et al. 2016) as an option.

Dueling networks (Wang et al. 2016) are an option of the policy, returns over several steps one of the replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from quintain.algorithms.base import Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.off_policy import OffPolicy, next_of, target_network
from quintain.algorithms.settings import DQNSettings
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.policies.q_network import QNetwork, best_action
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Array


class DQN(OffPolicy):
    """Fits Q-values to the TD target: the reward plus the discounted value of the best next action."""

    policy: QNetwork
    settings: DQNSettings

    def __init__(
        self,
        settings: DQNSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        if not isinstance(policy, QNetwork):
            raise SettingsError(
                f"dqn learns the values of discrete actions, which a {type(policy).__name__} does not have; use "
                f"policy.type q_network",
                code="E0224",
            )
        super().__init__(settings, policy, signals, rng)
        self.target = target_network(policy.network)

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        values = self.policy.network(minibatch)
        taken = values.gather(1, minibatch[self.policy.action_name].view(-1, 1)).squeeze(1)
        loss = functional.smooth_l1_loss(taken, self.targets_of(minibatch))
        return Loss(loss, {"train/loss": loss.detach(), "train/q_value": taken.detach().mean()})

    @torch.no_grad()
    def targets_of(self, minibatch: Minibatch) -> torch.Tensor:
        """Returns the TD target [B]: r + discount * max_a Q'(s', a) over allowed actions.

        Double Q-learning selects the action by the online network: Q'(s', argmax_a Q(s', a)).
        """
        after = next_of(minibatch)
        following = self.target(after)
        choosing = self.policy.network(after) if self.settings.double else following
        best = best_action(choosing, after.get(f.ACTION_MASK))
        value: torch.Tensor = following.gather(1, best.unsqueeze(1)).squeeze(1)
        return minibatch[f.REWARD] + minibatch[f.DISCOUNT] * value

    def update_targets(self) -> None:
        if self.step_number % self.settings.target_update_every == 0:
            self.target.soft_update_(self.policy.network, self.settings.tau)

    def observe(self, obs: Mapping[str, Array]) -> None:
        self.carry_over(self.policy.observe(obs, self.target.first_layers))

    def begin_from_policy(self) -> None:
        self.target.soft_update_(self.policy.network, 1.0)
