"""Posthumous credit assignment for groups (MA-POCA, Cohen et al. 2021): PPO with a critic that sees the whole group.

An agent's return is that of its group: its own reward, its teammates' and the group's. The advantage is a lambda-return
of the group's value minus a counterfactual baseline that is given the teammates' actions, so that it credits the action
of this agent. An agent that ends before its group is credited with the value of the group without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn

from quintain.algorithms.base import Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import POCASettings
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fields import Declared, like
from quintain.data.rollout import Batch, Rollout
from quintain.data.spec import leaves
from quintain.errors import SettingsError
from quintain.policies.actor_only import ActorOnly
from quintain.policies.base import Policy
from quintain.policies.group_critic import GroupCritic
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Array

ROWS_AT_ONCE = 2048
"""Steps per forward pass, so that a large buffer needs no temporary memory of its size."""


class POCA(PPO):
    """PPO for groups of agents, with a counterfactual baseline for each agent."""

    settings: POCASettings
    minibatch_fields: ClassVar[tuple[str, ...]] = (
        *PPO.minibatch_fields,
        f.BASELINE,
        f.TEAMMATES,
        f.TEAMMATE_OBS,
        f.TEAMMATE_ACTION,
    )

    def __init__(
        self,
        settings: POCASettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        if not isinstance(policy, ActorOnly):
            raise SettingsError(
                f"poca has a critic of its own, which sees whole groups; that of {type(policy).__name__} would learn "
                f"nothing. Use policy.type actor_only",
                code="E0224",
            )
        super().__init__(settings, policy, signals, rng)
        generator = self.rng.torch_generator("critic")
        self.critic = GroupCritic(policy.spec, policy.settings, settings.embedding_size, generator, self.num_streams)

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from super().trained_parameters()
        yield from ((f"critic.{name}", parameter) for name, parameter in self.critic.named_parameters())

    def observe(self, obs: Mapping[str, Array]) -> None:
        super().observe(obs)
        self.carry_over(self.critic.observe(obs))

    def declare_fields(self) -> Declared:
        return {**super().declare_fields(), **f.TEAMMATE_FIELDS, f.BASELINE: like(f.VALUE)}

    def estimate(self, batch: Batch) -> None:
        for rollout in batch:
            self._write_values(rollout)
        # A lambda-return is the value and the generalised advantage that it was estimated by.
        self.write_advantages(batch, self.settings.gae_lambda)
        for rollout in batch:
            better = rollout.storage[f.RETURN] - rollout.storage[f.BASELINE]
            rollout.storage[f.ADVANTAGE].copy_(better if self.num_streams == 1 else better.mean(dim=2))
        if self.settings.normalize_advantage:
            self.normalize_advantages(batch)

    def nothing_follows(self, rollout: Rollout) -> Array:
        """Returns for each step [T, N] whether the agent's whole group ended, not only the agent."""
        done, index = rollout.array(f.DONE)[:-1], rollout.array(f.FINAL_INDEX)[:-1]
        is_kept, ended = index >= 0, done & (index < 0)
        # With several streams what was seen next is kept of groups that ended too.
        is_empty = np.asarray(~rollout.final.array(f.TEAMMATES).any(axis=1))
        ended[is_kept] = rollout.array(f.TERMINATED)[:-1][is_kept] & is_empty[index[is_kept]]
        return ended

    @torch.no_grad()
    def _write_values(self, rollout: Rollout) -> None:
        """Writes values and baselines of all steps, and the bootstrap values after last ones."""
        names = [*rollout.obs_names, f.TEAMMATES, *leaves(rollout.spec.obs, f.TEAMMATE_OBS)]
        fields = {name: rollout.flat(name) for name in [*names, *leaves(rollout.spec.action, f.TEAMMATE_ACTION)]}
        value, baseline = rollout.flat(f.VALUE), rollout.flat(f.BASELINE)
        for start in range(0, len(value), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            value[rows], baseline[rows] = self.critic.value_and_baseline({k: x[rows] for k, x in fields.items()})
        ends = (rollout.flat(f.FINAL_INDEX) >= 0).nonzero().squeeze(1)
        final_value = rollout.flat(f.FINAL_VALUE)
        for some in torch.split(ends, ROWS_AT_ONCE) if len(ends) else ():
            seen = rollout.final.take(rollout.flat(f.FINAL_INDEX)[some].long())
            # Who really ended is not there any more; its teammates are. Where nobody is, its own end is looked at: only
            # streams that go on after ends read that.
            is_there = ~rollout.flat(f.TERMINATED)[some] | ~seen[f.TEAMMATES].any(dim=1)
            final_value[some] = self.critic.value(seen, is_there)

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        then, now = self.evaluate_minibatch(minibatch)
        surrogate = self.surrogate(then, now, fraction)
        value, baseline = self.critic.value_and_baseline(then)
        value_loss = self.value_loss(value, then[f.VALUE], then[f.RETURN], fraction)
        baseline_loss = self.value_loss(baseline, then[f.BASELINE], then[f.RETURN], fraction)
        error = value_loss + self.settings.baseline_coef * baseline_loss
        parts = {"train/value_loss": value_loss.detach(), "train/baseline_loss": baseline_loss.detach()}
        return Loss(surrogate.total + self.settings.value_coef * error, {**surrogate.parts, **parts})
