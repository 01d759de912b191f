"""Where the fields of one transition stand in a row of each dtype, so that a row is written and read in one piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, leaves, require_choices

if TYPE_CHECKING:
    from quintain.typing import Array

Rows = dict[str, "Array"]
"""Packed rows by dtype, each [..., width]."""


@dataclass(frozen=True)
class Column:
    """One field: its dtype, its places in a row of that dtype, and its shape."""

    dtype: str
    places: slice
    shape: tuple[int, ...]


class RowLayout:
    """Lays out what replay keeps of a transition: what was seen, what was done, and what came of it."""

    def __init__(self, spec: BehaviorSpec) -> None:
        obs, action = leaves(spec.obs, f.OBS), leaves(spec.action, f.ACTION)
        seen = {name: (leaf.dtype, leaf.shape) for name, leaf in obs.items()}
        if spec.mask_size:
            seen[f.ACTION_MASK] = ("bool", (spec.mask_size,))
        self.before = (*seen, *action)
        """Fields that are known when a transition begins."""
        self.after = tuple(f"{f.NEXT}{name}" for name in seen)
        """Fields of what it led to."""
        self.kinds = {**obs, **action, **{f"{f.NEXT}{name}": leaf for name, leaf in obs.items()}}
        """What each field with choices may be."""
        done = {name: (leaf.dtype, leaf.shape) for name, leaf in action.items()}
        led_to = {f"{f.NEXT}{name}": kind for name, kind in seen.items()}
        worth: dict[str, tuple[str, tuple[int, ...]]] = {f.REWARD: ("float32", ()), f.DISCOUNT: ("float32", ())}
        self.widths: dict[str, int] = {}
        self.columns = {name: self._place(*kind) for name, kind in {**seen, **done, **led_to, **worth}.items()}
        self.row_bytes = sum(width * np.dtype(dtype).itemsize for dtype, width in self.widths.items())

    def _place(self, dtype: str, shape: tuple[int, ...]) -> Column:
        start = self.widths.get(dtype, 0)
        self.widths[dtype] = start + int(np.prod(shape, dtype=np.int64))
        return Column(dtype, slice(start, self.widths[dtype]), shape)

    def allocate(self, *leading: int) -> Rows:
        """Makes memory for rows [*leading, width] of each dtype."""
        return {dtype: np.zeros((*leading, width), dtype) for dtype, width in self.widths.items()}

    def views(self, rows: Rows) -> dict[str, Array]:
        """Returns the fields of packed rows by name, [..., *shape], sharing their memory."""
        named = {}
        for name, column in self.columns.items():
            packed = rows[column.dtype]
            named[name] = packed[..., column.places].reshape(*packed.shape[:-1], *column.shape)
            assert np.shares_memory(named[name], packed) or not named[name].size
        return named

    def require_choices(self, where: str, rows: Rows) -> None:
        """Refuses packed rows of a saved state with choices that there are not."""
        for name, values in self.views(rows).items():
            if name in self.kinds:
                require_choices(self.kinds[name], f"{where}.{name}", values)

    def tensors(self, rows: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the fields of packed tensors [B, width] by name, sharing their memory."""
        return {
            name: rows[column.dtype][:, column.places].view(-1, *column.shape) for name, column in self.columns.items()
        }
