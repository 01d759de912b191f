"""PPO's minibatch steps by compiled kernels: the same losses and steps to rounding, on one thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.compiled.ppo import minibatch_gradient
from quintain.compiled.tables import (
    APPROX_KL,
    CLIP_FRACTION,
    ENTROPY,
    POLICY_LOSS,
    VALUE_LOSS,
    Experience,
    Outcomes,
    PPOWeights,
    Scratch,
)
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import leaves
from quintain.policies.compiled_acting import ActionColumns
from quintain.policies.kernel_tables import aligned_zeros, num_units, tables_of, tile_size

if TYPE_CHECKING:
    from quintain.algorithms.minibatches import MinibatchSampler
    from quintain.algorithms.settings import PPOSettings
    from quintain.compiled.kernel import Call
    from quintain.optimizer import Optimizer
    from quintain.policies.actor_critic import ActorCritic, Trunk
    from quintain.progress import Progress
    from quintain.typing import Array

_REPORTED = {
    "train/policy_loss": POLICY_LOSS,
    "train/value_loss": VALUE_LOSS,
    "train/entropy": ENTROPY,
    "train/approx_kl": APPROX_KL,
    "train/clip_fraction": CLIP_FRACTION,
}


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
        self.actions = ActionColumns(leaves(policy.spec.action, f.ACTION))
        self.scratch: dict[int, Scratch] = {}
        self.sums = np.zeros(len(_REPORTED))
        self.parameters = (optimizer.flat.detach().numpy(), optimizer.grad.numpy())
        optimizer.use_kernel()

    def prepare(
        self, batch: Batch, progress: Progress, learning_rate: float
    ) -> Callable[[int], Iterator[dict[str, float]]]:
        """Returns what takes the steps of an epoch, one down the loss of each minibatch, and yields their reports."""
        experience = self._read(batch)
        weights = _weights(self.settings, progress.fraction)

        @cache
        def gradient_of(num_rows: int) -> tuple[Array, Call[None]]:
            rows: Array = np.zeros(num_rows, np.int64)
            scratch = self._scratch(num_rows, experience.outcomes)
            return rows, minibatch_gradient.bind(
                self.tables, self.parameters, experience, rows, weights, scratch, self.sums
            )

        def take_steps(epoch: int) -> Iterator[dict[str, float]]:
            for chosen in self.sampler.row_numbers(batch, self.settings.batch_size, progress.updates, epoch):
                rows, write_gradient = gradient_of(len(chosen))
                np.copyto(rows, chosen.numpy())
                write_gradient()
                norm = self.optimizer.apply(learning_rate, float(len(rows)))
                sums = self.sums.tolist()
                yield {**{name: sums[i] for name, i in _REPORTED.items()}, "train/grad_norm": float(norm)}

        return take_steps

    def _read(self, batch: Batch) -> Experience:
        """Lays out what an update reads again and again: features scaled once, actions as columns."""
        rollout = batch.rollout
        flat = {name: rollout.flat(name) for name in rollout.storage}
        arrays = {name: field.numpy() for name, field in flat.items()}
        choices, numbers = self.actions.views(arrays)
        actor, critic = self.policy.trunk, self.policy.critic_trunk
        actor_features = _features(actor, flat)
        nothing = np.zeros((len(actor_features), 0), np.float32)
        outcomes = Outcomes(
            arrays.get(f.ACTION_MASK, nothing.astype(np.bool_)),
            choices,
            numbers,
            arrays.get(f.COMPONENTS, nothing),
            *(arrays[name] for name in (f.LOG_PROB, f.VALUE, f.ADVANTAGE, f.RETURN)),
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


def _weights(settings: PPOSettings, fraction: float) -> PPOWeights:
    """Returns the coefficients of the loss when `fraction` of the budget is spent."""
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
