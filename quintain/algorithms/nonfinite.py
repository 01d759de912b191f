"""Finds out, after the fact, where a number that is not finite came from. Nothing here runs in a healthy update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from quintain.algorithms.base import Algorithm
from quintain.core.progress import Progress
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import leaves

if TYPE_CHECKING:
    from quintain.typing import Array


@runtime_checkable
class MinibatchSettings(Protocol):
    """Settings of an algorithm that learns from minibatches, not from each batch as a whole."""

    batch_size: int


def first_bad_tensor(algorithm: Algorithm, batch: Batch, progress: Progress) -> str:
    """Names the first tensor on the way from observations to gradients that is not finite; empty if none is."""
    for name in _field_names(batch):
        values = batch.rollout.flat(name)[batch.valid_rows]
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            return name
    for name, parameter in algorithm.policy.state_dict().items():
        if parameter.is_floating_point() and not bool(torch.isfinite(parameter).all()):
            return f"parameter {name}"
    # Drawing minibatches is a meeting of ranks, and another rank may have found its bad tensor already.
    is_alone = algorithm.world.size == 1
    return _bad_gradient(algorithm) or (_bad_gradient_again(algorithm, batch, progress) if is_alone else "")


def evidence_of(batch: Batch) -> dict[str, Array]:
    """Returns the fields of a batch for a look afterwards, [T+1, N, ...]."""
    return {name: batch.rollout.array(name).copy() for name in _field_names(batch)}


def clear_nonfinite(batch: Batch) -> None:
    """Puts 0 where a batch that is given up is not finite: it waits in the store, which checkpoints hold."""
    for name in _field_names(batch):
        field = batch.rollout.storage[name]
        if field.is_floating_point():
            field.masked_fill_(~torch.isfinite(field), 0.0)


def _field_names(batch: Batch) -> list[str]:
    spec = batch.rollout.spec
    chosen = [*leaves(spec.obs, f.OBS), *leaves(spec.action, f.ACTION)]
    return [*chosen, f.REWARD, f.LOG_PROB, f.VALUE, f.FINAL_VALUE, f.ADVANTAGE, f.RETURN]


def _bad_gradient(algorithm: Algorithm) -> str:
    for name, parameter in algorithm.optimizer.parameters.items():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return f"gradient of {name}"
    return ""


def _bad_gradient_again(algorithm: Algorithm, batch: Batch, progress: Progress) -> str:
    """Computes the gradients of the batch once more, without a step, until one is not finite."""
    for minibatch in _minibatches(algorithm, batch, progress):
        algorithm.optimizer.clear()
        algorithm.optimizer.add(algorithm.loss(minibatch, progress.fraction).total)
        if found := _bad_gradient(algorithm):
            return found
    return ""


def _minibatches(algorithm: Algorithm, batch: Batch, progress: Progress) -> Iterator[dict[str, torch.Tensor]]:
    settings, everything = algorithm.settings, batch.rollout.num_steps * batch.rollout.num_lanes
    size = settings.batch_size if isinstance(settings, MinibatchSettings) else everything
    for minibatch in algorithm.minibatches(batch, size, progress.updates, 0):
        yield dict(minibatch)
