"""The base of all algorithms: parts, minibatches, and an update of one gradient step that most override."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from quintain.algorithms.auxiliary import AuxiliaryLoss
from quintain.algorithms.losses import Loss as Loss
from quintain.algorithms.losses import named_metrics
from quintain.algorithms.minibatches import Minibatch, MinibatchSampler, join_parts, moved, only_valid, split
from quintain.algorithms.optimization import Optimization
from quintain.algorithms.returns import explained_variance, generalized_advantages
from quintain.algorithms.settings import AlgorithmSettings
from quintain.algorithms.streams import num_streams, refuse_what_one_critic_cannot, weighted_reward
from quintain.algorithms.symmetry import Mirror, with_mirrors
from quintain.core.process_group import ProcessGroup, SingleProcess, joint_moments
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fields import Declared
from quintain.data.rollout import Batch, Rollout
from quintain.errors import NonFiniteError, SettingsError
from quintain.policies.base import Policy
from quintain.rewards.base import RewardSignal
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings
from quintain.services.checkpoints.packed_state import pack_value, unpack_value

if TYPE_CHECKING:
    from quintain.typing import Array, Metrics


class Algorithm(Optimization):
    """Estimates advantages or targets (`estimate`) and updates the policy (`update`)."""

    # The policy is the trainer's to save; the sampler has only scratch memory.
    not_state: ClassVar[frozenset[str]] = frozenset(
        {
            "policy",
            "sampler",
            "rng",
            "mirror",
            "world",
            "num_streams",
            "stream_rewards",
            "group_size",
            "minibatch_fields",
        }
    )
    minibatch_fields: ClassVar[tuple[str, ...]] = (f.OBS, f.ACTION, f.LOG_PROB, f.VALUE, f.ADVANTAGE, f.RETURN)

    starts_fresh: ClassVar[bool] = False
    """Whether every rollout starts new episodes in all lanes and counts only those."""

    needs_groups: ClassVar[bool] = False
    """Whether it compares lanes with equal initial states, so that the environment must have groups of them."""

    def __init__(
        self,
        settings: AlgorithmSettings,
        policy: Policy,
        signals: Mapping[str, RewardSignal] | None = None,
        rng: Rng | None = None,
    ) -> None:
        """Makes the algorithm; the default signal is the environment's reward."""
        self.settings = settings
        self.mirror: Mirror | None = None
        self.group_size = 1
        """Number of neighbouring lanes with equal initial states; set by the composition root to the environment's."""
        self.policy = policy
        self.signals = dict(signals or {"extrinsic": Extrinsic(ExtrinsicSettings())})
        self.num_streams = num_streams(settings, self.signals)
        if self.num_streams == 1:
            refuse_what_one_critic_cannot(self.signals)
        # Before anything makes room for values.
        policy.split_values(self.num_streams)
        self.rng = rng or Rng(0)
        for name, signal in self.signals.items():
            signal.connect(policy.spec, self.rng.child("signals").child(name))
        self.sampler = MinibatchSampler(self.rng, policy.burn_in)
        self.world: ProcessGroup = SingleProcess()
        self.generalized_advantages: Callable[..., Array] = generalized_advantages
        """The recursion of GAE; acceleration replaces it by a kernel with bitwise equal results."""
        self.learning_rate_scale = 1.0
        """Factor on the learning rate; below 1 after rollbacks because of updates that were not finite."""
        self.stream_rewards: dict[str, float] = {}
        """The mean reward per step of each of several reward signals in the last batch."""

    def join(self, world: ProcessGroup) -> None:
        """Joins a process group: the same steps on all ranks, each from its own lanes."""
        self.world = world
        self.optimizers.join(world)
        self.sampler.join(world)
        for part in self._learning_parts():
            part.join(world)

    def observe(self, obs: Mapping[str, Array]) -> None:
        """Updates the observation normaliser from leaves [B, ...]; called once per cycle, after the update."""
        self.carry_over(self.policy.observe(obs) or ())

    def begin_from_policy(self) -> None:
        """Called when the policy got other weights before the run began."""

    def makes_version(self, progress: Progress) -> bool:
        """Whether the update of this cycle makes a new version of the policy; weights are published either way."""
        return True

    def declare_fields(self) -> Declared:
        """Declares its own fields by name: `{"weight": Field()}`, or like another one, `like("action")`.

        Every block has them. They are in minibatches if `minibatch_fields` lists them too.
        """
        return {}

    @property
    def gamma(self) -> float:
        """The common discount of all reward signals where they are summed."""
        return next(iter(self.signals.values())).gamma

    def reward(self, rollout: Rollout) -> Array:
        """Returns the weighted sum of all reward signals, [T, N]."""
        weighted = [weighted_reward(name, signal, rollout) for name, signal in self.signals.items()]
        return weighted[0] if len(weighted) == 1 else np.sum(weighted, axis=0)

    @abstractmethod
    def estimate(self, batch: Batch) -> None:
        """Writes advantages and returns into the batch's rollouts."""

    def learn(self, batch: Batch, progress: Progress) -> Metrics:
        """Changes the policy (`update`), and then lets reward signals learn from the same batch; once per cycle.

        Metrics of a signal are means over ranks, reported as `train/<name>_<metric>`.
        """
        metrics = self.update(batch, progress)
        # Of several optimizers the policy's may have taken no step this time.
        leading = self.policy_optimizer if self.auxiliary_losses and len(self.optimizers) > 1 else ""
        has_steps = not leading or f"train/grad_norm_{leading}" in metrics or bool(self.optimizers[leading].norms)
        for name in self.auxiliary_losses if metrics and has_steps else ():
            if f"train/{name}_loss" not in metrics:
                raise SettingsError(
                    f"{type(self).__name__} leaves auxiliary_losses.{name} out: its update takes steps by other ways "
                    f"than gradient_step and step_on, which add auxiliary losses. Leave it out of the settings",
                    code="E0224",
                )
        learned: Metrics = {}
        for name, signal in self.signals.items():
            learned |= named_metrics(name, signal.update(batch, progress), {**metrics, **learned})
        return {**metrics, **(self.report(learned, 1, progress) if learned else {})}

    def _learning_parts(self) -> list[RewardSignal | AuxiliaryLoss]:
        return [*self.signals.values(), *self.auxiliary_losses.values()]

    @property
    def sees_next_obs(self) -> bool:
        """Whether a reward signal reads next observations, those after true ends too."""
        return any(signal.sees_next_obs for signal in self.signals.values())

    def share_parts(self) -> None:
        """Gives reward signals and auxiliary losses the state that they have on rank 0."""
        for part in self._learning_parts():
            if self.world.size > 1 and (state := part.state_dict()):
                part.load_state_dict(unpack_value(self.world.broadcast(pack_value(state))))

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        """Updates the policy from the batch: here by one gradient step on all of it."""
        size = batch.rollout.num_steps * batch.rollout.num_lanes * self.world.size
        [everything] = self.minibatches(batch, size, progress.updates)
        learning_rate = self.settings.learning_rate.at(progress.fraction)
        parts = self.gradient_step(everything, progress.fraction, learning_rate)
        return {**self.report(parts, 1, progress), "train/learning_rate": learning_rate}

    def write_advantages(self, batch: Batch, gae_lambda: float) -> None:
        """Writes generalized advantages (GAE) and returns; with several reward signals the mean advantage."""
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
        """Returns the advantages of each reward signal by its own value head and discount, [T, N, S]."""
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
        """Returns advantages [T, N] of rewards and values; `ends` are the steps without a bootstrap."""
        done, valid = rollout.array(f.DONE)[:-1], rollout.array(f.VALID)[:-1]
        recursion = partial(self.generalized_advantages, gamma=gamma, gae_lambda=gae_lambda)
        steps = (reward, value, final_value[:-1], ends, done, valid)
        return recursion(*steps) if rollout.over_borders is None else rollout.over_borders(recursion, *steps)

    def nothing_follows(self, rollout: Rollout) -> Array:
        """Returns for each step [T, N] whether it is terminal, so that nothing is bootstrapped."""
        return rollout.array(f.TERMINATED)[:-1]

    def explained_variance(self, batch: Batch) -> float:
        """Returns the explained variance of the value function on a batch, of several value heads together."""
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
        """Returns mean reward and value per step of each of several reward signals; empty for one."""
        if self.num_streams == 1:
            return {}
        expected = batch.rollout.flat(f.VALUE)[batch.valid_rows].mean(dim=0)
        given = torch.tensor([self.stream_rewards[name] for name in self.signals])
        means = torch.cat((expected.cpu(), given))
        self.world.average(means)
        names = [f"{what}/{name}" for what in ("value", "reward") for name in self.signals]
        return dict(zip(names, means.tolist(), strict=True))

    def normalize_advantages(self, batch: Batch) -> None:
        """Normalizes the advantages of valid steps, over all ranks, to mean 0 and deviation 1.

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
        """Averages summed metrics over minibatches and ranks, and refuses values that are not finite.

        A value that is not finite on one rank is not finite in the mean, so that all ranks refuse it together.
        """
        if len(self.optimizers) > 1:
            sums = {**sums, **{name: norm * count for name, norm in self.optimizers.norms().items()}}
        if self.world.size == 1 and all(isinstance(value, float) for value in sums.values()):
            values: list[Any] = (np.array(list(sums.values()), np.float32) / np.float32(count)).tolist()
        else:
            device = self.policy.device
            summed = [torch.as_tensor(value, dtype=torch.float32, device=device) for value in sums.values()]
            means = torch.stack(summed).div_(count)
            self.world.average(means)
            values = means.tolist()
        metrics = dict(zip(sums, values, strict=True))
        for name, value in metrics.items():
            if value != value or value in (float("inf"), float("-inf")):
                raise NonFiniteError(f"{name} became {value} in the update at step {progress.env_steps}", code="E0604")
        return metrics

    def mirrored(self, minibatch: Minibatch) -> Minibatch:
        """Adds the environment's mirror image of each step, with `use_symmetry`."""
        return minibatch if self.mirror is None else with_mirrors(minibatch, self.policy.spec, self.mirror)

    def minibatches(self, batch: Batch, batch_size: int, *counters: int) -> Iterator[Minibatch]:
        """Yields all valid steps once, in a random order that depends on the counters only, where the policy is."""
        draw, device = self.sampler.lanes if self.policy.state_size else self.sampler.rows, self.policy.device
        return (moved(each, device) for each in draw(batch, self.minibatch_fields, batch_size, *counters))

    @torch.no_grad()
    def evaluate_batch(self, batch: Batch, names: Sequence[str], size: int) -> Minibatch:
        """Returns the policy's current evaluation of all actions of a batch, [T * N, ...], by `size` rows at a time.

        It is where the batch is, which may be another device than the policy's.
        """
        are_sequences, device = self.policy.state_size > 0, self.policy.device
        everything = self.sampler.everything(batch, names, are_sequences=are_sequences)
        parts = [self.policy.evaluate_actions(moved(part, device)) for part in split(everything, size)]
        steps = batch.rollout.num_steps
        whole = {
            name: join_parts([each[name] for each in parts], steps, are_sequences=are_sequences) for name in parts[0]
        }
        return moved(whole, batch.rollout.device)

    def evaluate_minibatch(self, minibatch: Minibatch) -> tuple[Minibatch, Minibatch]:
        """Returns the valid steps, and the policy's current evaluation of their actions."""
        return only_valid(minibatch, self.policy.evaluate_actions(minibatch))
