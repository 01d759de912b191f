"""Action masks as rows: from one array over all options, or from masks in the action's structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from quintain.data.spec import DictSpec, Spec, TupleSpec, discrete_sizes

if TYPE_CHECKING:
    from quintain.typing import Array, Tree


def mask_rows(action: Spec, value: Tree, wanted: Array) -> Array:
    """Converts the masks of some lanes to bool rows with one column per option, in the order of the leaves.

    `wanted [N]` says which rows are returned; only those must allow an option. Raises ValueError for an invalid mask.
    """
    rows = np.concatenate(_columns(action, value, len(wanted)), axis=1).astype(np.bool_)[wanted]
    sizes = discrete_sizes(action)
    if rows.shape[1] != sum(sizes):
        raise ValueError(
            f"an action mask of {rows.shape[1]} options, expected {sum(sizes)}: one for each option of each discrete "
            f"action, in order"
        )
    allowed = np.logical_or.reduceat(rows, np.cumsum((0, *sizes[:-1])), axis=1)
    if not allowed.all():
        which = f" of choice {int(np.argwhere(~allowed)[0][1])}" if len(sizes) > 1 else ""
        raise ValueError(f"an action mask that allows nothing{which}; at least one option must be allowed")
    return rows


def _columns(action: Spec, value: Tree, num_rows: int) -> list[Array]:
    if isinstance(action, DictSpec) and isinstance(value, Mapping):
        entries: list[tuple[str | int, Spec]] = [(key, below) for key, below in action.entries if discrete_sizes(below)]
        for key, _ in entries:
            if key not in value:
                raise ValueError(f"an action mask without {key!r}")
    elif isinstance(action, TupleSpec) and isinstance(value, tuple) and len(value) == len(action.entries):
        entries = [(i, below) for i, below in enumerate(action.entries) if discrete_sizes(below)]
    else:
        # Gymnasium writes the mask of a MultiDiscrete as a tuple of arrays.
        parts = value if isinstance(value, tuple) else (value,)
        return [_rows(np.asarray(part), num_rows) for part in parts]
    return [part for key, below in entries for part in _columns(below, value[key], num_rows)]


def _rows(part: Array, num_rows: int) -> Array:
    if num_rows > 1 and part.shape[:1] != (num_rows,):
        raise ValueError(f"an action mask of shape {part.shape}, expected one row for each of {num_rows} lanes")
    return part.reshape(num_rows, -1)
