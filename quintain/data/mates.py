"""What the other members of an agent's group saw and did: fields with an axis of mates, as wide as groups are large.

Nobody knows beforehand how large groups get, so these fields grow wider. Where fewer mates are present than there are
places, the places that are not taken hold zeros.
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

MATE_AXIS = 2
"""Where the axis of mates is in a block's fields."""


def mate_fields(spec: BehaviorSpec) -> dict[str, Field]:
    """Returns what is kept of one mate, by field name."""
    return {name: field for name, field in resolve_fields(spec, f.MATE_FIELDS).items() if field.per == "mate"}


def no_mates(spec: BehaviorSpec, *shape: int) -> dict[str, Array]:
    """Returns the fields of mates without room for any, [*shape, 0, ...]."""
    return {name: np.zeros((*shape, 0, *each.shape), each.dtype) for name, each in mate_fields(spec).items()}


def own_names(spec: BehaviorSpec) -> dict[str, str]:
    """Returns under which name an agent's own field is what a mate's field shows to others."""
    return {
        **dict(zip(leaves(spec.obs, f.MATE_OBS), leaves(spec.obs, f.OBS), strict=True)),
        **dict(zip(leaves(spec.action, f.MATE_ACTION), leaves(spec.action, f.ACTION), strict=True)),
    }


def set_width(block: Rollout, fields: dict[str, torch.Tensor], width: int) -> None:
    """Gives so many mates a place, in fields [T+1, N, M, ...] and after last steps; who has a place there keeps it."""
    # Blocks grow while agents act; what is made in inference mode could never take part in learning.
    with torch.inference_mode(False):
        for name in (name for name, field in block.fields.items() if field.per == "mate"):
            fields[name] = _resized(fields[name], MATE_AXIS, width)
            if name in block.final.rows:
                block.final.rows[name] = _resized(block.final.rows[name], MATE_AXIS - 1, width)


def copy_mates(into: Array, rows: Array) -> None:
    """Writes rows [a, b, m, ...] of at most as many mates as there are places for."""
    width = rows.shape[MATE_AXIS]
    into[:, :, :width] = rows
    into[:, :, width:] = 0


def padded(rows: Mapping[str, Array], like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns rows [k, m, ...] with as many places as the fields of the same names have."""
    return {name: _resized(torch.from_numpy(each), 1, like[name].shape[1]) for name, each in rows.items()}


def _resized(field: torch.Tensor, axis: int, width: int) -> torch.Tensor:
    if field.shape[axis] == width:
        return field
    shape = list(field.shape)
    shape[axis] = width
    resized = field.new_zeros(shape)
    kept = min(width, field.shape[axis])
    resized.narrow(axis, 0, kept).copy_(field.narrow(axis, 0, kept))
    return resized
