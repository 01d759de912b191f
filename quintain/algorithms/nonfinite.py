"""Finds the source of a value that is not finite, afterwards. Never runs in a healthy update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch

from quintain.algorithms.base import Algorithm
from quintain.core.progress import Progress
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import leaves

if TYPE_CHECKING:
    from quintain.typing import Array, Saved


@runtime_checkable
class MinibatchSettings(Protocol):
    """Settings of an algorithm that learns from minibatches, not from whole batches."""

    batch_size: int


def first_bad_tensor(algorithm: Algorithm, batch: Batch, progress: Progress) -> str:
    """Returns the first tensor from observations to gradients that is not finite; empty if none is."""
    for name in _field_names(batch):
        values = batch.rollout.flat(name)[batch.valid_rows]
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            return name
    for name, parameter in algorithm.policy.state_dict().items():
        if parameter.is_floating_point() and not bool(torch.isfinite(parameter).all()):
            return f"parameter {name}"
    for kind, parts in (("reward signal", algorithm.signals), ("auxiliary loss", algorithm.auxiliary_losses)):
        for name, part in parts.items():
            if found := _bad_value(part.state_dict()):
                return f"{found} of {kind} {name}"
    # Drawing minibatches is a meeting of ranks, and another rank may have found its bad tensor already.
    is_alone = algorithm.world.size == 1
    return _bad_gradient(algorithm) or (_bad_gradient_again(algorithm, batch, progress) if is_alone else "")


def evidence_of(batch: Batch) -> dict[str, Array]:
    """Returns the fields of a batch for debugging, [T+1, N, ...]."""
    return {name: batch.rollout.array(name).copy() for name in _field_names(batch)}


def clear_nonfinite(batch: Batch) -> None:
    """Replaces values that are not finite by 0 in a batch that is dropped: checkpoints contain the store."""
    for name in _field_names(batch):
        field = batch.rollout.storage[name]
        if field.is_floating_point():
            field.masked_fill_(~torch.isfinite(field), 0.0)


def _field_names(batch: Batch) -> list[str]:
    spec = batch.rollout.spec
    chosen = [*leaves(spec.obs, f.OBS), *leaves(spec.action, f.ACTION)]
    return [*chosen, f.REWARD, f.LOG_PROB, f.VALUE, f.FINAL_VALUE, f.ADVANTAGE, f.RETURN]


def _bad_value(saved: Saved, path: str = "") -> str:
    """Returns the path of the first number of a state that is not finite; empty if all are."""
    if isinstance(saved, Mapping | list):
        items = saved.items() if isinstance(saved, Mapping) else enumerate(saved)
        return next((found for key, value in items if (found := _bad_value(value, f"{path}.{key}"))), "")
    is_number = isinstance(saved, float | np.ndarray | torch.Tensor)
    return path.removeprefix(".") if is_number and not bool(torch.isfinite(torch.as_tensor(saved)).all()) else ""


def _bad_gradient(algorithm: Algorithm) -> str:
    for optimizer in algorithm.optimizers.values():
        for name, grad in zip(optimizer.parameters, optimizer.gradients, strict=True):
            if not bool(torch.isfinite(grad).all()):
                return f"gradient of {name}"
    return ""


def _bad_gradient_again(algorithm: Algorithm, batch: Batch, progress: Progress) -> str:
    """Computes the gradients of the batch again, without a step, until one is not finite."""
    for minibatch in _minibatches(algorithm, batch, progress):
        algorithm.optimizer.clear()
        algorithm.optimizer.add(algorithm.total_loss(minibatch, progress.fraction).total)
        if found := _bad_gradient(algorithm):
            return found
    return ""


def _minibatches(algorithm: Algorithm, batch: Batch, progress: Progress) -> Iterator[dict[str, torch.Tensor]]:
    settings, everything = algorithm.settings, batch.rollout.num_steps * batch.rollout.num_lanes
    size = settings.batch_size if isinstance(settings, MinibatchSettings) else everything
    for minibatch in algorithm.minibatches(batch, size, progress.updates, 0):
        yield dict(minibatch)
