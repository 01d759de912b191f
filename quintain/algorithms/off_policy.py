"""The base of algorithms that learn from replay: SAC, TD3, DQN, and those of your own.

A subclass defines the loss, the noise it needs and the update of its target networks. The base stores transitions in a
replay buffer, acts at random until learning starts, and takes gradient steps: their number depends on environment steps
only, and minibatches depend on counters only, so that a resumed run repeats them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

import torch
from torch import nn

from quintain.algorithms.base import Algorithm
from quintain.algorithms.minibatches import Minibatch, moved
from quintain.algorithms.optimization import LossOf
from quintain.algorithms.replay_draws import ReplayDraws
from quintain.algorithms.settings import OffPolicySettings
from quintain.core.process_group import ProcessGroup
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.policies.encoders import Encoder
from quintain.policies.exploring import ExploringPolicy
from quintain.policies.flat_parameters import FlatModule
from quintain.policies.heads import NoiseSpec
from quintain.policies.normalizer import ObsNormalizer
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Metrics

NEXT_NOISE = f"{f.NEXT}{f.NOISE}"
_Network = TypeVar("_Network", bound=nn.Module)


class GradientAccelerator(Protocol):
    """Writes the gradient of an algorithm's loss in place of autograd: equal to rounding, in less time."""

    def updating(self) -> AbstractContextManager[None]:
        """Context of the gradient steps of one update."""

    def write_gradient(self, minibatch: Minibatch, optimizer: str = "main") -> Mapping[str, float]:
        """Writes the gradient of each parameter of an optimizer to its `grad`, and returns the metrics to report."""


class OffPolicy(Algorithm):
    """Learns from minibatches of remembered transitions.

    A minibatch has `obs`, `action`, `reward`, `discount`, `next_obs` and, with masks, `action_mask` and
    `next_action_mask`. The target of a value is `reward + discount * value(next_obs)`: the discount is gamma to the
    number of rewards that were added up, and 0 after a true end.
    """

    settings: OffPolicySettings
    policy: ExploringPolicy
    minibatch_fields: ClassVar[tuple[str, ...]] = ()
    """Declared fields that are stored with transitions."""
    not_state: ClassVar[frozenset[str]] = Algorithm.not_state | {"accelerator", "draws", "step_number"}

    def __init__(
        self,
        settings: OffPolicySettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        if not isinstance(policy, ExploringPolicy):
            raise SettingsError(
                f"{settings.type or type(self).__name__} begins with random actions, which a {type(policy).__name__} "
                f"does not know; derive your policy from quintain.policies.ExploringPolicy",
                code="E0224",
            )
        super().__init__(settings, policy, signals, rng)
        for name, signal in self.signals.items():
            signal.is_replayed = True
            if len(self.signals) > 1 and type(signal).rescale is not RewardSignal.rescale:
                raise SettingsError(
                    f"reward_signals.{name}.normalize_reward scales replayed rewards when they are drawn, and those of "
                    f"several signals are stored as one sum. Leave it out, or the other signals",
                    code="E0216",
                )
        self.accelerator: GradientAccelerator | None = None
        """Writes gradients in place of autograd if set; `quintain.compiled.accelerate` sets it."""
        self.draws: ReplayDraws | None = None
        self.step_number = 0
        """The gradient step that is being taken, counted over the run from 1: a function of environment steps."""
        policy.acts_at_random.fill_(True)

    @property
    def minibatch_noise(self) -> tuple[NoiseSpec, NoiseSpec]:
        """Noise that transitions of a minibatch have, for their actions (`noise`) and the next ones (`next_noise`)."""
        return NoiseSpec(), NoiseSpec()

    def update_targets(self) -> None:
        """Updates the target networks; called after each gradient step, whose number is `step_number`."""

    def join(self, world: ProcessGroup) -> None:
        super().join(world)
        self.rng = self.rng.child(f"rank_{world.rank}") if world.rank else self.rng
        for network in vars(self).values():
            for module in network.modules() if isinstance(network, nn.Module) else ():
                if isinstance(module, ObsNormalizer):
                    module.world = world

    def take_in_weights(self) -> None:
        super().take_in_weights()
        for network in vars(self).values():
            if isinstance(network, FlatModule) and network.everything and not network.everything[0].requires_grad:
                network.adopt()

    def estimate(self, batch: Batch) -> None:
        """Writes the newest steps and their rewards to the replay buffer."""
        batch.remember(self.reward(batch.rollout), self.gamma)

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        settings, fraction = self.settings, progress.fraction
        first, due = self._gradient_steps(batch, progress)
        learning_rate = settings.learning_rate.at(fraction)
        sums: dict[str, torch.Tensor | float] = {}
        counts: dict[str, int] = {}
        with nullcontext() if self.accelerator is None else self.accelerator.updating():
            for step in range(due):
                self.step_number = first + step + 1
                [minibatch] = self.minibatches(batch, settings.batch_size, progress.updates, step)
                parts = self.gradient_step(minibatch, fraction, learning_rate)
                self.update_targets()
                for name, part in parts.items():
                    sums[name] = sums[name] + part if name in sums else part
                    counts[name] = counts.get(name, 0) + 1
        # A loss that only some steps have is the mean over these.
        sums |= {name: sums[name] * (due / count) for name, count in counts.items() if count < due}
        if not due:
            return {}
        exploration = self.policy.schedule
        told = {} if exploration is None else {"train/exploration": exploration.at(fraction)}
        return {**self.report(sums, due, progress), "train/learning_rate": learning_rate, **told}

    def _gradient_steps(self, batch: Batch, progress: Progress) -> tuple[int, int]:
        """Returns how many gradient steps came before these environment steps, and how many follow them.

        A ratio below 1 skips cycles.
        """
        before = progress.env_steps
        after = before + int(self.world.sum([batch.num_valid])[0])
        ratio = self.settings.updates_per_step
        first = math.floor(ratio * before)
        # A transition over several rewards is complete only some steps later.
        if after < self.settings.learning_starts or not self.world.all(len(batch.memory) > 0):
            return first, 0
        self.policy.acts_at_random.fill_(False)
        return first, math.floor(ratio * after) - first

    def gradient_step(
        self, minibatch: Minibatch, fraction: float, learning_rate: float, micro_batch_size: int | None = None
    ) -> dict[str, torch.Tensor | float]:
        if self.accelerator is None:
            return super().gradient_step(minibatch, fraction, learning_rate, micro_batch_size)
        parts = self.accelerator.write_gradient(minibatch)
        norm = self.optimizer.apply(learning_rate * self.learning_rate_scale, float(len(minibatch[f.REWARD])))
        return {**parts, "train/grad_norm": norm}

    def step_on(
        self,
        name: str,
        loss: LossOf,
        minibatch: Minibatch,
        fraction: float,
        learning_rate: float,
    ) -> dict[str, torch.Tensor | float]:
        """Takes a step of one of several optimizers down a loss of a minibatch, and returns its metrics.

        Auxiliary losses are added to the steps of the first optimizer that trains the policy.
        """
        if self.accelerator is None:
            has_more = bool(self.auxiliary_losses) and name == self.policy_optimizer
            total, parts = self.total_loss(minibatch, fraction, loss) if has_more else loss(minibatch, fraction)
            self.step_optimizer(name, total, learning_rate, minibatch)
            return {**parts}
        written = self.accelerator.write_gradient(minibatch, name)
        weight = float(len(minibatch[f.REWARD]))
        norm = self.optimizers[name].apply(learning_rate * self.learning_rate_scale, weight)
        return {**written, f"train/grad_norm_{name}": norm}

    def minibatches(self, batch: Batch, batch_size: int, *counters: int) -> Iterator[Minibatch]:
        """Yields one minibatch, sampled uniformly from the replay buffer, with the noise of its actions."""
        update, step = counters
        places, noise = self._draws_of(batch_size // self.world.size).draw(update, step, len(batch.memory))
        now, following = map(torch.from_numpy, noise)
        named = {**self.rescaled(batch.memory.draw(places)), f.NOISE: now, NEXT_NOISE: following}
        yield moved(named, self.policy.device)

    def rescaled(self, fields: Minibatch) -> Minibatch:
        """Returns drawn transitions with the rewards that their signal makes of the stored ones now."""
        signal = next(iter(self.signals.values()))
        return fields if len(self.signals) > 1 else {**fields, f.REWARD: signal.rescale(fields[f.REWARD])}

    def _draws_of(self, size: int) -> ReplayDraws:
        """Returns the draws of minibatches of this rank's size."""
        if self.draws is None or self.draws.size != size or self.draws.rng != self.rng:
            self.draws = ReplayDraws(self.rng, size, self.minibatch_noise)
        return self.draws


def target_network(network: _Network) -> _Network:
    """Returns a copy that takes no gradients and scales observations as the original does, now and later."""
    copied = copy.deepcopy(network).requires_grad_(False)
    for own, other in zip(list(copied.modules()), list(network.modules()), strict=True):
        if isinstance(own, Encoder) and isinstance(other, Encoder):
            own.share_scale(other)
    if isinstance(copied, FlatModule):
        # At once, so that views of the weights may be kept elsewhere.
        copied.in_one_piece()
    return copied


@torch.no_grad()
def soft_update_(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging: target += tau * (source - target) for each weight; a `tau` of 1 copies the source."""
    for own, other in zip(target.parameters(), source.parameters(), strict=True):
        own.lerp_(other, tau)


def next_of(minibatch: Minibatch) -> Minibatch:
    """Returns the fields of the next state under the names of the current one: `next_obs` as `obs`, and so on."""
    return {name.removeprefix(f.NEXT): field for name, field in minibatch.items() if name.startswith(f.NEXT)}
