"""Observations and actions of an agent's teammates: fields with a teammate axis, as wide as the largest group.

The size of groups is not known in advance, so these fields grow. Places without a teammate hold zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.fields import Field, resolve_fields
from quintain.data.spec import BehaviorSpec, leaves

if TYPE_CHECKING:
    from quintain.data.rollout import Rollout
    from quintain.typing import Array

TEAMMATE_AXIS = 2
"""The teammate axis of a block's fields."""


def teammate_fields(spec: BehaviorSpec) -> dict[str, Field]:
    """Returns the fields of one teammate, by name."""
    return {name: field for name, field in resolve_fields(spec, f.TEAMMATE_FIELDS).items() if field.per == "teammate"}


def no_teammates(spec: BehaviorSpec, *shape: int) -> dict[str, Array]:
    """Returns the fields of teammates with width 0, [*shape, 0, ...]."""
    return {name: np.zeros((*shape, 0, *each.shape), each.dtype) for name, each in teammate_fields(spec).items()}


def own_names(spec: BehaviorSpec) -> dict[str, str]:
    """Returns the agent's own field for each teammate field, by name."""
    return {
        **dict(zip(leaves(spec.obs, f.TEAMMATE_OBS), leaves(spec.obs, f.OBS), strict=True)),
        **dict(zip(leaves(spec.action, f.TEAMMATE_ACTION), leaves(spec.action, f.ACTION), strict=True)),
    }


def set_width(block: Rollout, fields: dict[str, torch.Tensor], width: int) -> None:
    """Sets the width of teammate fields [T+1, N, M, ...] and of final rows; existing entries are kept."""
    # Blocks grow while agents act; what is made in inference mode could never take part in learning.
    with torch.inference_mode(False):
        for name in (name for name, field in block.fields.items() if field.per == "teammate"):
            fields[name] = resized(fields[name], TEAMMATE_AXIS, width)
            if name in block.final.rows:
                block.final.rows[name] = resized(block.final.rows[name], TEAMMATE_AXIS - 1, width)


def copy_teammates(into: Array, rows: Array) -> None:
    """Writes rows [a, b, m, ...]; m is at most the width."""
    width = rows.shape[TEAMMATE_AXIS]
    into[:, :, :width] = rows
    into[:, :, width:] = 0


def padded(rows: Mapping[str, Array], like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns rows [k, m, ...], padded to the width of the fields of the same names."""
    return {name: resized(torch.from_numpy(each), 1, like[name].shape[1]) for name, each in rows.items()}


def resized(field: torch.Tensor, axis: int, width: int) -> torch.Tensor:
    """Returns a field with another width along an axis: zeros are added, or entries left out."""
    if field.shape[axis] == width:
        return field
    shape = list(field.shape)
    shape[axis] = width
    resized = field.new_zeros(shape)
    kept = min(width, field.shape[axis])
    resized.narrow(axis, 0, kept).copy_(field.narrow(axis, 0, kept))
    return resized
