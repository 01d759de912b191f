"""What all algorithms share: parts, minibatches, and an update of one gradient step that most override."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from quintain.algorithms.minibatches import Minibatch, MinibatchSampler, num_valid, only_valid, split
from quintain.algorithms.optimizer import Optimizer
from quintain.algorithms.returns import explained_variance, generalized_advantages
from quintain.algorithms.settings import AlgorithmSettings
from quintain.algorithms.streams import num_streams, refuse_what_one_critic_cannot, weighted_reward
from quintain.algorithms.symmetry import Mirror, with_mirrors
from quintain.core.process_group import Alone, World, joint_moments
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.core.state import KeepsState
from quintain.data import fields as f
from quintain.data.fields import Declared
from quintain.data.rollout import Batch, Rollout
from quintain.errors import NonFiniteError
from quintain.policies.base import Policy
from quintain.policies.normalizer import Fold
from quintain.rewards.base import RewardSignal
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings

if TYPE_CHECKING:
    from quintain.typing import Array, Metrics


class Loss(NamedTuple):
    """The number to minimise and what to report of it; all 0-d tensors, so that nothing waits for a device."""

    total: torch.Tensor
    parts: dict[str, torch.Tensor]


class Algorithm(KeepsState, ABC):
    """Works out what experience was worth (`estimate`) and changes the policy (`update`)."""

    # The policy is the trainer's to save; the sampler has only scratch memory.
    not_state: ClassVar[frozenset[str]] = frozenset(
        {"policy", "sampler", "rng", "mirror", "world", "num_streams", "stream_rewards", "group_size"}
    )
    minibatch_fields: ClassVar[tuple[str, ...]] = (f.OBS, f.ACTION, f.LOG_PROB, f.VALUE, f.ADVANTAGE, f.RETURN)

    starts_fresh: ClassVar[bool] = False
    """Whether every rollout begins new episodes in all lanes and counts only those."""

    needs_groups: ClassVar[bool] = False
    """Whether it compares lanes that begin alike, so that the environment must have groups of them."""

    def __init__(
        self,
        settings: AlgorithmSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        """Makes the algorithm; without signals the environment's own reward is what counts."""
        self.settings = settings
        self.mirror: Mirror | None = None
        self.group_size = 1
        """Neighbouring lanes that start alike; whatever composes a run sets it to the environment's."""
        self.policy = policy
        self.signals = dict(signals or {"extrinsic": Extrinsic(ExtrinsicSettings())})
        self.num_streams = num_streams(settings, self.signals)
        if self.num_streams == 1:
            refuse_what_one_critic_cannot(self.signals)
        # Before the optimizer takes the parameters, and before anybody makes room for values.
        policy.split_values(self.num_streams)
        self.rng = rng or Rng(0)
        self.optimizer = Optimizer(
            self.trained_parameters(), eps=settings.adam_eps, max_grad_norm=settings.max_grad_norm
        )
        self.sampler = MinibatchSampler(self.rng)
        self.world: World = Alone()
        self.generalized_advantages: Callable[..., Array] = generalized_advantages
        """The recursion over time; acceleration puts a kernel here that gives the same bits."""
        self.learning_rate_scale = 1.0
        """Smaller after the run went back because of numbers that were not finite."""
        self.stream_rewards: dict[str, float] = {}
        """What each of several streams gave per step of the last batch."""

    def join(self, world: World) -> None:
        """Learns together with other ranks: the same steps, each from its own lanes."""
        self.world = self.optimizer.world = world
        self.sampler.join(world)

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields what the optimizer moves, by name; called when the algorithm is made and again in every cycle."""
        yield from self.policy.named_parameters()

    def adopt_weights(self) -> None:
        """Lets weights that were replaced, or moved to other memory, be those that act and learn; once per cycle."""
        self.optimizer.adopt(self.trained_parameters())

    def observe(self, obs: Mapping[str, Array]) -> None:
        """Learns the observations' scale from a batch of leaves [B, ...]; called once per cycle, after the update."""
        self.carry_over(self.policy.observe(obs) or ())

    def carry_over(self, folds: Iterable[Fold]) -> None:
        """Keeps Adam's moments true of layers that a move of the scale was folded into."""
        for fold in folds:
            weight, bias = (self.optimizer.moments_of(part) for part in (fold.layer.weight, fold.layer.bias))
            # Targets are folded too and have no moments.
            if weight is not None and bias is not None:
                fold.carry_over(weight, bias)

    def begin_from_policy(self) -> None:
        """Takes note that the policy was given other weights before the run began."""

    def declare_fields(self) -> Declared:
        """Declares fields of its own, by name: `{"weight": Field()}`, or as another one, `like("action")`.

        Every block has them. They are in minibatches if `minibatch_fields` lists them too.
        """
        return {}

    @property
    def gamma(self) -> float:
        """The discount that all reward signals share where they are summed."""
        return next(iter(self.signals.values())).gamma

    def reward(self, rollout: Rollout) -> Array:
        """Returns the weighted sum of all reward signals, [T, N]."""
        weighted = [weighted_reward(name, signal, rollout) for name, signal in self.signals.items()]
        return weighted[0] if len(weighted) == 1 else np.sum(weighted, axis=0)

    @abstractmethod
    def estimate(self, batch: Batch) -> None:
        """Writes advantages and returns into the batch's rollouts."""

    @abstractmethod
    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        """Returns the loss of one minibatch when `fraction` of the budget is spent."""

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        """Changes the policy by what the batch shows: here by one gradient step on all of it."""
        size = batch.rollout.num_steps * batch.rollout.num_lanes * self.world.size
        [everything] = self.minibatches(batch, size, progress.updates)
        learning_rate = self.settings.learning_rate.at(progress.fraction)
        parts = self.descend(everything, progress.fraction, learning_rate)
        return {**self.report(parts, 1, progress), "train/learning_rate": learning_rate}

    def descend(
        self, minibatch: Minibatch, fraction: float, learning_rate: float, micro_batch_size: int | None = None
    ) -> dict[str, Any]:
        """Takes one step down the loss of a minibatch, in parts whose gradients add up, and returns what to report."""
        learning_rate *= self.learning_rate_scale
        weight = num_valid(minibatch) if self.world.size > 1 else 1.0
        if micro_batch_size is None:
            loss = self.loss(minibatch, fraction)
            return {**loss.parts, "train/grad_norm": self.optimizer.step(loss.total, learning_rate, weight)}
        whole = num_valid(minibatch)
        sums: dict[str, torch.Tensor] = {}
        self.optimizer.clear()
        for part in split(minibatch, micro_batch_size):
            share = num_valid(part) / whole
            loss = self.loss(part, fraction)
            self.optimizer.add(loss.total * share)
            sums = {k: v * share + (sums[k] if sums else 0.0) for k, v in loss.parts.items()}
        return {**sums, "train/grad_norm": self.optimizer.apply(learning_rate, weight)}

    def write_advantages(self, batch: Batch, gae_lambda: float) -> None:
        """Writes generalised advantages and the returns they imply; of several streams the mean advantage."""
        for rollout in batch:
            value = rollout.array(f.VALUE)
            if self.num_streams == 1:
                final_value, ends = rollout.array(f.FINAL_VALUE), self.nothing_follows(rollout)
                found = advantage = self._advantages(
                    rollout, self.reward(rollout), value, final_value, ends, self.gamma, gae_lambda
                )
            else:
                found = self._stream_advantages(rollout, gae_lambda)
                advantage = found.mean(axis=2)
            rollout.storage[f.ADVANTAGE][:-1].copy_(torch.from_numpy(advantage))
            rollout.storage[f.RETURN][:-1].copy_(torch.from_numpy(found + value[:-1]))

    def _stream_advantages(self, rollout: Rollout, gae_lambda: float) -> Array:
        """Returns the advantages of each stream by its own value and discount, [T, N, S]."""
        value, final_value, valid = (rollout.array(name) for name in (f.VALUE, f.FINAL_VALUE, f.VALID))
        ends = self.nothing_follows(rollout)
        found = []
        for k, (name, signal) in enumerate(self.signals.items()):
            reward = weighted_reward(name, signal, rollout)
            self.stream_rewards[name] = float(reward[valid[:-1]].mean())
            own_ends = np.zeros_like(ends) if signal.ignores_ends else ends
            found.append(
                self._advantages(
                    rollout, reward, value[..., k], final_value[..., k], own_ends, signal.gamma, gae_lambda
                )
            )
        return np.stack(found, axis=2)

    def _advantages(
        self,
        rollout: Rollout,
        reward: Array,
        value: Array,
        final_value: Array,
        ends: Array,
        gamma: float,
        gae_lambda: float,
    ) -> Array:
        """Returns advantages [T, N] of rewards and values; `ends` are the steps after which nothing is expected."""
        done, valid = rollout.array(f.DONE)[:-1], rollout.array(f.VALID)[:-1]
        return self.generalized_advantages(
            reward, value, final_value[:-1], ends, done, valid, gamma=gamma, gae_lambda=gae_lambda
        )

    def nothing_follows(self, rollout: Rollout) -> Array:
        """Says of each step [T, N] whether it was a true end, after which nothing is to be expected."""
        return rollout.array(f.TERMINATED)[:-1]

    def explained_variance(self, batch: Batch) -> float:
        """Says how well the critic foresaw the returns of a batch, those of several streams together."""
        value, target = (batch.rollout.flat(name)[batch.valid_rows].cpu().numpy() for name in (f.VALUE, f.RETURN))
        if self.world.size == 1:
            return explained_variance(value, target)
        both = np.stack((target - value, target)).astype(np.float64)
        both = np.moveaxis(both, 1, -1).reshape(2 * self.num_streams, len(target))
        mean = both.mean(axis=1)
        _, _, squares = joint_moments(self.world, len(target), mean, np.square(both - mean[:, None]).sum(axis=1))
        unexplained, total = squares.reshape(2, -1).sum(axis=1)
        return float("nan") if total == 0.0 else 1.0 - float(unexplained / total)

    def stream_metrics(self, batch: Batch) -> Metrics:
        """Returns what each of several streams gave and was expected to give per step; nothing of a single one."""
        if self.num_streams == 1:
            return {}
        expected = batch.rollout.flat(f.VALUE)[batch.valid_rows].mean(dim=0)
        given = torch.tensor([self.stream_rewards[name] for name in self.signals])
        means = torch.cat((expected.cpu(), given))
        self.world.average(means)
        names = [f"{what}/{name}" for what in ("value", "reward") for name in self.signals]
        return dict(zip(names, means.tolist(), strict=True))

    def normalize_advantages(self, batch: Batch) -> None:
        """Scales the advantages of the steps that count, on all ranks, to mean 0 and deviation 1.

        Over the whole batch, not per minibatch: ranks can agree on it, and the remainder is not special.
        """
        advantage = batch.rollout.flat(f.ADVANTAGE)
        counting = advantage[batch.valid_rows]
        spread, mean = torch.std_mean(counting, correction=0)
        if self.world.size > 1:
            own = counting.double().cpu().numpy()
            own_mean = own.mean() if len(own) else 0.0
            count, means, squares = joint_moments(self.world, len(own), own_mean, np.square(own - own_mean).sum())
            mean, spread = (torch.as_tensor(float(x[0])).to(mean) for x in (means, np.sqrt(squares / count)))
        advantage.sub_(mean).div_(spread + 1e-8)

    def report(self, sums: Mapping[str, Any], count: int, progress: Progress) -> Metrics:
        """Turns summed scalars into means over minibatches and ranks, and refuses what is not finite.

        A number that is not finite on one rank is not finite in the mean, so that all ranks refuse it together.
        """
        if self.world.size == 1 and all(isinstance(value, float) for value in sums.values()):
            values: list[Any] = (np.array(list(sums.values()), np.float32) / np.float32(count)).tolist()
        else:
            means = torch.stack([torch.as_tensor(value, dtype=torch.float32) for value in sums.values()]).div_(count)
            self.world.average(means)
            values = means.tolist()
        metrics = dict(zip(sums, values, strict=True))
        for name, value in metrics.items():
            if value != value or value in (float("inf"), float("-inf")):
                raise NonFiniteError(f"{name} became {value} in the update at step {progress.env_steps}", code="E0604")
        return metrics

    def mirrored(self, minibatch: Minibatch) -> Minibatch:
        """Adds what the environment calls symmetric to each step, if it was asked for."""
        return minibatch if self.mirror is None else with_mirrors(minibatch, self.policy.spec, self.mirror)

    def minibatches(self, batch: Batch, batch_size: int, *counters: int) -> Iterator[Minibatch]:
        """Yields everything that counts once, in an order that depends on the counters only."""
        draw = self.sampler.lanes if self.policy.state_size else self.sampler.rows
        return draw(batch, self.minibatch_fields, batch_size, *counters)

    def judge(self, minibatch: Minibatch) -> tuple[Minibatch, Minibatch]:
        """Returns the steps that count, and what the policy now says of their actions."""
        return only_valid(minibatch, self.policy.evaluate_actions(minibatch))
