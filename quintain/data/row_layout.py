"""Where the fields of a transition or a sequence stand in a row of each dtype, so that a row is copied in one piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.fields import Field
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
    """Lays out what replay keeps: a transition [...], or a sequence of steps [horizon, ...] for a recurrent policy.

    A transition has what was seen and done, what it led to (`next_obs`), its reward and its discount. A sequence has
    the observation after its last step behind the others [horizon + 1, ...], which steps there are (`valid`), and the
    hidden state before the first.
    """

    def __init__(
        self, spec: BehaviorSpec, extra: Mapping[str, Field] | None = None, *, horizon: int = 0, state_size: int = 0
    ) -> None:
        """Lays out transitions, or with a `horizon` sequences of at most so many steps; `extra` are declared fields."""
        self.horizon = horizon
        obs, action = leaves(spec.obs, f.OBS), leaves(spec.action, f.ACTION)
        seen = {name: Field(leaf.shape, leaf.dtype) for name, leaf in obs.items()}
        if spec.mask_size:
            seen[f.ACTION_MASK] = Field((spec.mask_size,), "bool")
        done = {name: Field(leaf.shape, leaf.dtype) for name, leaf in action.items()}
        led_to = {} if horizon else {f"{f.NEXT}{name}": field for name, field in seen.items()}
        worth = {f.REWARD: Field(), f.DISCOUNT: Field()}
        self.seen = tuple(seen)
        """Fields of an observation."""
        self.done = (*done, *(extra or {}))
        """Fields of what was done at it, and declared ones."""
        self.after = tuple(led_to)
        """Fields of what a transition led to."""
        self.kinds = {**obs, **action}
        """The leaves that fields with discrete values are of."""
        self.widths: dict[str, int] = {}
        if horizon:
            steps = {**done, **worth, f.VALID: Field((), "bool")}
            self.columns = {
                **{name: self._place(field.dtype, (horizon + 1, *field.shape)) for name, field in seen.items()},
                **{name: self._place(field.dtype, (horizon, *field.shape)) for name, field in steps.items()},
                f.POLICY_STATE: self._place("float32", (state_size,)),
            }
        else:
            self.kinds |= {f"{f.NEXT}{name}": leaf for name, leaf in obs.items()}
            transition = {**seen, **done, **led_to, **worth}
            self.columns = {name: self._place(field.dtype, field.shape) for name, field in transition.items()}
        for name, field in (extra or {}).items():
            self.columns[name] = self._place(field.dtype, (horizon, *field.shape) if horizon else field.shape)
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

    def lengths(self, rows: Rows, places: Array) -> Array:
        """Returns how many steps the sequences at these places have."""
        valid = self.columns[f.VALID]
        lengths: Array = rows[valid.dtype][places, valid.places].sum(axis=1)
        return lengths

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
