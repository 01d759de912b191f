"""Soft actor-critic (Haarnoja et al. 2018) for numbers, choices (Christodoulou 2019) and mixtures of both.

Critics, policy and temperature take each gradient step together, all three judged by the weights before it: one
backward pass and one Adam step over one flat vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import nn

from quintain.algorithms.base import Algorithm, Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.replay_draws import ReplayDraws
from quintain.algorithms.settings import SACSettings
from quintain.algorithms.temperature import Temperature, entropy_of_choices
from quintain.algorithms.twin_critics import TwinCritics
from quintain.core.process_group import World
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import choice_sizes
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.policies.normalizer import ObsNormalizer
from quintain.policies.soft_actor import Proposal, SoftActor
from quintain.policies.spec_rules import observed
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Array, Metrics

NEXT_NOISE = f"{f.NEXT}{f.NOISE}"


class GradientAccelerator(Protocol):
    """Writes the gradient of SAC's loss in place of autograd: equal to rounding, in less time."""

    def updating(self) -> AbstractContextManager[None]:
        """Surrounds the gradient steps of one update."""

    def write_gradient(self, minibatch: Minibatch) -> Mapping[str, float]:
        """Writes the gradient of every trained parameter to its `grad`, and returns the metrics to report."""


class SAC(Algorithm):
    """Values actions by two critics learned from replay, and prefers good actions without becoming predictable."""

    policy: SoftActor
    minibatch_fields: ClassVar[tuple[str, ...]] = ()
    """Declared fields that are replayed beside transitions."""
    not_state: ClassVar[frozenset[str]] = Algorithm.not_state | {
        "accelerator",
        "draws",
        "num_numbers",
    }

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
        rng = rng or Rng(0)
        self.num_numbers = policy.noise.num_normal
        self.critics = self._make_critics(policy, rng)
        # Before the optimizer gives the critics flat memory, which a copy must not share.
        self.targets = self.critics.target()
        self.temperature = Temperature(settings, self.num_numbers, choice_sizes(policy.spec.action)).to(policy.device)
        super().__init__(settings, policy, signals, rng)
        self.settings: SACSettings = settings
        self.accelerator: GradientAccelerator | None = None
        """Writes gradients in place of autograd where it is set; `quintain.compiled.accelerate` sets it."""
        self.draws = ReplayDraws(self.rng, settings.batch_size, self.num_numbers)
        policy.acts_at_random.fill_(True)

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.policy.named_parameters()
        yield from self.critics.named_parameters(prefix="critics")
        yield from self.temperature.named_parameters(prefix="temperature")

    def adopt_weights(self) -> None:
        super().adopt_weights()
        self.targets.adopt()

    def join(self, world: World) -> None:
        super().join(world)
        self.rng = self.rng.child(f"rank_{world.rank}") if world.rank else self.rng
        for module in self.critics.modules():
            if isinstance(module, ObsNormalizer):
                module.world = world

    def observe(self, obs: Mapping[str, Array]) -> None:
        super().observe(obs)
        self.carry_over(self.critics.observe(obs, self.targets))

    def estimate(self, batch: Batch) -> None:
        """Remembers the newest steps with what they were worth."""
        batch.remember(self.reward(batch.rollout), self.gamma)

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        settings, fraction = self.settings, progress.fraction
        due = self._num_due(batch, progress)
        learning_rate = settings.learning_rate.at(fraction)
        sums: dict[str, torch.Tensor] = {}
        with nullcontext() if self.accelerator is None else self.accelerator.updating():
            for step in range(due):
                [minibatch] = self.minibatches(batch, settings.batch_size, progress.updates, step)
                parts = self.descend(minibatch, fraction, learning_rate)
                self._follow()
                sums = {name: sums[name] + part if sums else part for name, part in parts.items()}
        return {**self.report(sums, due, progress), "train/learning_rate": learning_rate} if due else {}

    def _follow(self) -> None:
        """Lets what targets are made from follow what learns."""
        self.targets.follow(self.critics, self.settings.tau)

    def _num_due(self, batch: Batch, progress: Progress) -> int:
        """Returns how many gradient steps follow these environment steps; a ratio below 1 skips cycles."""
        before = progress.env_steps
        after = before + int(self.world.sum([batch.num_valid])[0])
        # A transition over several rewards is complete only some steps later.
        if after < self.settings.learning_starts or not self.world.all(len(batch.memory) > 0):
            return 0
        self.policy.acts_at_random.fill_(False)
        ratio = self.settings.updates_per_step
        return math.floor(ratio * after) - math.floor(ratio * before)

    def descend(
        self, minibatch: Minibatch, fraction: float, learning_rate: float, micro_batch_size: int | None = None
    ) -> dict[str, Any]:
        if self.accelerator is None:
            return super().descend(minibatch, fraction, learning_rate, micro_batch_size)
        parts = self.accelerator.write_gradient(minibatch)
        norm = self.optimizer.apply(learning_rate * self.learning_rate_scale, float(len(minibatch[f.REWARD])))
        return {**parts, "train/grad_norm": norm}

    def minibatches(self, batch: Batch, batch_size: int, *counters: int) -> Iterator[Minibatch]:
        """Yields one minibatch, drawn evenly from all that is remembered, with the noise that its actions take."""
        update, step = counters
        size = batch_size // self.world.size
        if self.draws.size != size or self.draws.rng != self.rng:
            self.draws = ReplayDraws(self.rng, size, self.num_numbers)
        places, drawn = self.draws.draw(update, step, len(batch.memory))
        noise = torch.from_numpy(drawn)
        named = {**batch.memory.draw(places), f.NOISE: noise[0], NEXT_NOISE: noise[1]}
        device = self.policy.device
        yield named if device.type == "cpu" else {name: field.to(device) for name, field in named.items()}

    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        target = self._target(minibatch)
        return self._loss_of(minibatch, self.critics.encode(minibatch), self.policy.encoder(minibatch), target)

    def _loss_of(self, minibatch: Minibatch, features: torch.Tensor, seen: torch.Tensor, target: torch.Tensor) -> Loss:
        """Returns the loss of transitions, given what critics (`features`) and policy (`seen`) make of observations."""
        mask = minibatch.get(f.ACTION_MASK)
        values = self.critics.values(features, self.policy.numbers_of(minibatch))
        taken = self._of_choices_made(values, minibatch)
        critic_loss = 0.5 * (taken - target).square().mean(dim=1).sum()

        proposal = self.policy.propose_for(seen, minibatch[f.NOISE], mask)
        judged = self.critics.values(features.detach(), proposal.numbers, is_frozen=True).amin(dim=0)
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
        """Returns what the critics should have said [B]: the reward, and what a careful judge expects to follow."""
        after = {name.removeprefix(f.NEXT): field for name, field in minibatch.items() if name.startswith(f.NEXT)}
        return self._target_of(minibatch, self.targets.encode(after), self.policy.encoder(after))

    def _target_of(self, minibatch: Minibatch, features: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Returns the same, given what target critics and policy make of what followed."""
        mask = minibatch.get(f"{f.NEXT}{f.ACTION_MASK}")
        proposal = self.policy.propose_for(seen, minibatch[NEXT_NOISE], mask)
        careful = self.targets.values(features, proposal.numbers).amin(dim=0)
        return minibatch[f.REWARD] + minibatch[f.DISCOUNT] * self._soft_value(careful, proposal)

    def _soft_value(self, values: torch.Tensor, proposal: Proposal) -> torch.Tensor:
        """Returns E[Q - alpha log pi] [B]: exactly over choices, by the one draw over numbers."""
        log_probs = proposal.choice_log_probs
        if log_probs is None:
            soft = values[:, 0]
        else:
            soft = (log_probs.exp() * (values - self.temperature.coef("choices") * log_probs)).sum(dim=1)
        return soft if proposal.log_prob is None else soft - self.temperature.coef("numbers") * proposal.log_prob

    def _of_choices_made(self, values: torch.Tensor, minibatch: Minibatch) -> torch.Tensor:
        """Returns what each critic says of the actions taken, [2, B]."""
        chosen = self.policy.chosen_in(minibatch)
        return values[..., 0] if chosen is None else values.gather(2, chosen.expand(2, -1, -1)).sum(dim=2)

    def _entropy_parts(self, proposal: Proposal) -> dict[str, torch.Tensor]:
        entropies = {}
        if proposal.log_prob is not None:
            entropies["numbers"] = -proposal.log_prob.detach().mean()
        if proposal.choice_log_probs is not None:
            entropies["choices"] = entropy_of_choices(proposal.choice_log_probs.detach()).mean()
        is_hybrid = len(entropies) > 1
        reported = {}
        for kind, entropy in entropies.items():
            suffix = f"_of_{kind}" if is_hybrid else ""
            reported[f"train/entropy{suffix}"] = entropy
            reported[f"train/entropy_coef{suffix}"] = torch.as_tensor(self.temperature.coef(kind))
        return reported

    def _make_critics(self, policy: SoftActor, rng: Rng) -> TwinCritics:
        spec, settings = policy.spec, policy.settings
        return TwinCritics(
            observed(spec, "critic", settings.critic_obs),
            policy.noise.num_normal,
            sum(choice_sizes(spec.action)),
            settings,
            rng.torch_generator("critics"),
        ).to(policy.device)
