"""Packs the fields of a transition or a sequence into one row per dtype, so that it is copied at once."""

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
    """One field: its dtype, its columns in a row of that dtype, and its shape."""

    dtype: str
    places: slice
    shape: tuple[int, ...]


class RowLayout:
    """Layout of rows in a replay buffer: a transition [...], or a sequence [horizon, ...] for recurrent policies.

    A transition has obs, action, its successor (`next_obs`), reward and discount. A sequence also has the observation
    after its last step [horizon + 1, ...], which steps exist (`valid`), and the hidden state before the first.
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
        """Fields of the action, and declared ones."""
        self.after = tuple(led_to)
        """Fields of a transition's successor."""
        self.kinds = {**obs, **action}
        """The leaves of fields with discrete values."""
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
        """Allocates rows [*leading, width] of each dtype."""
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
        """Returns the number of steps of the sequences at these indices."""
        valid = self.columns[f.VALID]
        lengths: Array = rows[valid.dtype][places, valid.places].sum(axis=1)
        return lengths

    def require_choices(self, where: str, rows: Rows) -> None:
        """Refuses packed rows of a saved state with discrete values out of range."""
        for name, values in self.views(rows).items():
            if name in self.kinds:
                require_choices(self.kinds[name], f"{where}.{name}", values)

    def tensors(self, rows: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the fields of packed tensors [B, width] by name, sharing their memory."""
        return {
            name: rows[column.dtype][:, column.places].view(-1, *column.shape) for name, column in self.columns.items()
        }
