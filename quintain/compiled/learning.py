"""PPO's minibatch steps by compiled kernels: losses and steps are equal up to rounding, on one thread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.algorithms import returns
from quintain.algorithms.ppo import BEHAVIOR_RATIO, PPO, EpochSteps
from quintain.algorithms.ppo import SQUARED_RATIO as SQUARED_RATIO_NAME
from quintain.compiled.acting import ActionColumns
from quintain.compiled.adam import use_adam_kernel
from quintain.compiled.kernels.ppo import minibatch_gradient
from quintain.compiled.kernels.recurrent_ppo import sequence_gradient
from quintain.compiled.kernels.recursions import generalized_advantages
from quintain.compiled.kernels.tables import (
    APPROX_KL,
    CLIP_FRACTION,
    ENTROPY,
    MEMORY_SIZE,
    NUM_FEATURES,
    NUM_GATES,
    POLICY_LOSS,
    RATIO,
    SQUARED_RATIO,
    VALUE_LOSS,
    Experience,
    Outcomes,
    PPOWeights,
    Scratch,
    Sequences,
    SequenceScratch,
)
from quintain.compiled.policy_tables import aligned_zeros, memory_tables_of, num_units, tables_of, tile_size
from quintain.compiled.rules import NO_LEARNING_KERNELS, why_ppo_is_plain
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import leaves
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.memory import chunk_starts

if TYPE_CHECKING:
    from quintain.algorithms.base import Algorithm
    from quintain.algorithms.minibatches import MinibatchSampler
    from quintain.algorithms.optimizer import Optimizer
    from quintain.algorithms.settings import PPOSettings
    from quintain.compiled.runtime.kernel import Call
    from quintain.core.progress import Progress
    from quintain.policies.actor_critic import Trunk
    from quintain.typing import Array

_REPORTED = {
    "train/policy_loss": POLICY_LOSS,
    "train/value_loss": VALUE_LOSS,
    "train/entropy": ENTROPY,
    "train/approx_kl": APPROX_KL,
    "train/clip_fraction": CLIP_FRACTION,
    BEHAVIOR_RATIO: RATIO,
    SQUARED_RATIO_NAME: SQUARED_RATIO,
}


def accelerate_ppo(algorithm: Algorithm, acting_reason: str) -> str:
    """Plugs kernels into PPO; returns the reason where autograd stays."""
    if not isinstance(algorithm, PPO):
        return NO_LEARNING_KERNELS
    algorithm.accelerator = algorithm.optimizer.kernel = None
    algorithm.generalized_advantages = returns.generalized_advantages
    if reason := why_ppo_is_plain(algorithm, is_changed=type(algorithm) is not PPO, acting_reason=acting_reason):
        return reason
    assert isinstance(algorithm.policy, ActorCritic)
    algorithm.accelerator = CompiledLearning(
        algorithm.policy, algorithm.settings, algorithm.optimizer, algorithm.sampler
    )
    algorithm.generalized_advantages = generalized_advantages
    return ""


class CompiledLearning:
    """Takes the steps of an update for a policy that acts by kernels too."""

    def __init__(
        self, policy: ActorCritic, settings: PPOSettings, optimizer: Optimizer, sampler: MinibatchSampler
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.optimizer = optimizer
        self.sampler = sampler
        self.tables = tables_of(policy)
        self.memory = memory_tables_of(policy)
        self.actions = ActionColumns(leaves(policy.spec.action, f.ACTION))
        self.scratch: dict[int, Scratch] = {}
        self.sequence_scratch: dict[tuple[int, int], SequenceScratch] = {}
        self.sums = np.zeros(len(_REPORTED))
        self.parameters = (optimizer.flat.detach().numpy(), optimizer.grad.numpy())
        use_adam_kernel(optimizer)

    def prepare(self, batch: Batch, progress: Progress, learning_rate: float) -> EpochSteps:
        """Returns a function that takes the steps of an epoch, one per minibatch, and yields their metrics."""
        experience = self._read(batch)
        weights = _weights(self.settings, progress.fraction)
        # With memory a minibatch is lanes, not rows.
        draw = self.sampler.row_numbers if self.memory is None else self.sampler.lane_numbers

        @cache
        def gradient_of(size: int) -> tuple[Array, Call[int | None]]:
            numbers: Array = np.zeros(size, np.int64)
            return numbers, self._bind(batch, experience, numbers, weights)

        def take_steps(epoch: int) -> Iterator[dict[str, float]]:
            for chosen in draw(batch, self.settings.batch_size, progress.updates, epoch):
                numbers, write_gradient = gradient_of(len(chosen))
                np.copyto(numbers, chosen.numpy())
                num_rows = write_gradient()
                norm = self.optimizer.apply(learning_rate, float(len(numbers) if num_rows is None else num_rows))
                sums = self.sums.tolist()
                yield {**{name: sums[i] for name, i in _REPORTED.items()}, "train/grad_norm": float(norm)}

        return take_steps

    def _bind(self, batch: Batch, experience: Experience, numbers: Array, weights: PPOWeights) -> Call[int | None]:
        """Returns the bound gradient call of a minibatch of rows, or of lanes for a recurrent policy."""
        if self.memory is None:
            scratch = self._scratch(len(numbers), experience.outcomes)
            return minibatch_gradient.bind(
                self.tables, self.parameters, experience, numbers, weights, scratch, self.sums
            )
        rollout = batch.rollout
        first = rollout.storage[f.FIRST][:-1].numpy()
        settings = self.policy.settings.memory
        assert settings is not None
        cut = first.copy()
        cut[list(chunk_starts(rollout.num_steps, settings.context_length, settings.burn_in))] = True
        counted = self.sampler.counted(batch).numpy()
        sequences = Sequences(
            experience, first.reshape(-1), cut.reshape(-1), counted.reshape(-1), rollout.policy_state.numpy()
        )
        num_rows = rollout.num_steps * len(numbers)
        both = self._scratch(num_rows, experience.outcomes), self._sequence_scratch(rollout.num_steps, len(numbers))
        tables = self.tables, self.memory
        return sequence_gradient.bind(tables, self.parameters, sequences, numbers, weights, both, self.sums)

    def _read(self, batch: Batch) -> Experience:
        """Prepares the data of an update: features normalized once, actions as columns."""
        rollout = batch.rollout
        flat = {name: rollout.flat(name) for name in rollout.storage}
        arrays = {name: field.numpy() for name, field in flat.items()}
        choices, numbers = self.actions.views(arrays)
        actor, critic = self.policy.trunk, self.policy.critic_trunk
        actor_features = _features(actor, flat)
        nothing = np.zeros((len(actor_features), 0), np.float32)
        advantage, old, old_components = arrays[f.ADVANTAGE], f.LOG_PROB, f.COMPONENTS
        if self.settings.stale_correction == "decoupled":
            advantage = arrays[f.BEHAVIOR_WEIGHT] * advantage
            old, old_components = f.PROXIMAL, f.PROXIMAL_COMPONENTS
        outcomes = Outcomes(
            arrays.get(f.ACTION_MASK, nothing.astype(np.bool_)),
            choices,
            numbers,
            arrays.get(old_components, nothing),
            arrays[old],
            arrays[f.VALUE],
            advantage,
            arrays[f.RETURN],
        )
        return Experience(actor_features, actor_features if critic is None else _features(critic, flat), outcomes)

    def _scratch(self, num_rows: int, outcomes: Outcomes) -> Scratch:
        size = tile_size(num_rows)
        if size not in self.scratch:
            tile = Outcomes(*(np.zeros((size, *field.shape[1:]), field.dtype) for field in outcomes))
            units, slopes, deltas = (aligned_zeros(num_units(self.tables), size) for _ in range(3))
            judged = aligned_zeros(2 + self.policy.num_components, size)
            self.scratch[size] = Scratch(units, slopes, deltas, judged, tile)
        return self.scratch[size]

    def _sequence_scratch(self, num_steps: int, num_lanes: int) -> SequenceScratch:
        scratch = self.sequence_scratch.get((num_steps, num_lanes))
        if scratch is None:
            assert self.memory is not None
            trunks, num_rows = self.memory.trunks, num_steps * num_lanes
            size, num_gates = int(trunks[0, MEMORY_SIZE]), int(trunks[0, NUM_GATES])
            num_features, num_columns = int(trunks[:, NUM_FEATURES].max()), tile_size(num_rows)
            shapes = (
                (num_features * num_gates,),
                (size, num_gates),
                (num_rows * num_features,),
                (num_rows, num_gates),
                *((num_rows, size) for _ in range(4)),
                (num_lanes, num_gates),
                (2, num_lanes, size),
                (num_gates, num_columns),
                (max(size, num_features), num_columns),
            )
            numbers: list[Array] = [np.zeros(num_rows, np.int64) for _ in range(2)]
            scratch = SequenceScratch(*(aligned_zeros(*shape) for shape in shapes), *numbers)
            known = self.sequence_scratch
            # Agents' sequences come in numbers that never come again.
            self.sequence_scratch = {**({} if len(known) > 2 else known), (num_steps, num_lanes): scratch}
        return scratch


def _weights(settings: PPOSettings, fraction: float) -> PPOWeights:
    """Returns the coefficients of the loss after `fraction` of the budget."""
    return PPOWeights(
        settings.clip_coef.at(fraction),
        math.inf if settings.clip_value is None else settings.clip_value.at(fraction),
        settings.entropy_coef.at(fraction),
        settings.value_coef,
    )


@torch.no_grad()
def _features(trunk: Trunk, fields: dict[str, torch.Tensor]) -> Array:
    features: Array = np.ascontiguousarray(trunk.encoder(fields).numpy())
    return features
