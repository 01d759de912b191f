"""Symmetry augmentation: also learns from mirrored steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, build, flatten

Mirror = Callable[[Any, Any], list[tuple[Any, Any]]]
"""Maps a batch of observations and actions, in the spec's structure, to mirrored batches of the same size."""


def with_mirrors(minibatch: Mapping[str, torch.Tensor], spec: BehaviorSpec, mirror: Mirror) -> dict[str, torch.Tensor]:
    """Returns the minibatch followed by its mirrored copies; all fields but obs and action are repeated."""
    mirrored = mirror(build(spec.obs, minibatch, f.OBS), build(spec.action, minibatch, f.ACTION))
    named = [{**flatten(spec.obs, obs, f.OBS), **flatten(spec.action, act, f.ACTION)} for obs, act in mirrored]
    return {
        name: torch.cat([field, *(copy.get(name, field).to(field.dtype) for copy in named)])
        for name, field in minibatch.items()
    }
