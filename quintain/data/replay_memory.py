"""The ring of a replay buffer: one packed array per dtype, so that writing and sampling rows are one copy each.

Nothing is allocated after the start. The arrays are in memory or in a memory-mapped file; results do not depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from quintain.core.state import BulkArray, require_count, require_shapes
from quintain.data.row_layout import RowLayout, Rows

if TYPE_CHECKING:
    from quintain.typing import Array, State

SEGMENT_BYTES = 8 << 20
"""Unit of checkpoints: an unchanged segment is not written again."""


class Allocator(Protocol):
    """Allocates an array of zeros."""

    def __call__(self, shape: tuple[int, int], dtype: str) -> Array: ...


class ReplayMemory:
    """Stores the newest `buffer_size` transitions; the oldest are overwritten."""

    def __init__(self, layout: RowLayout, buffer_size: int, allocate: Allocator = np.zeros) -> None:
        self.layout = layout
        self.buffer_size = buffer_size
        self.rows: Rows = {dtype: allocate((buffer_size, width), dtype) for dtype, width in layout.widths.items()}
        self.num_added = 0
        self.segment_rows = max(1, SEGMENT_BYTES // layout.row_bytes)
        self.segments = [range(start, min(start + self.segment_rows, buffer_size)) for start in self._starts()]
        self.hashes: dict[tuple[str, int], tuple[int, str]] = {}
        self.drawn: dict[str, torch.Tensor] = {}
        self.drawn_fields: dict[str, torch.Tensor] = {}

    def _starts(self) -> range:
        return range(0, self.buffer_size, self.segment_rows)

    def __len__(self) -> int:
        return min(self.num_added, self.buffer_size)

    def add(self, rows: Rows) -> None:
        """Copies packed rows in, over the oldest ones once the ring is full."""
        count = len(next(iter(rows.values())))
        start = self.num_added % self.buffer_size
        fitting = min(count, self.buffer_size - start)
        for dtype, packed in self.rows.items():
            packed[start : start + fitting] = rows[dtype][:fitting]
        self.num_added += fitting
        if fitting < count:
            self.add({dtype: packed[fitting:] for dtype, packed in rows.items()})

    def draw(self, places: Array) -> dict[str, torch.Tensor]:
        """Returns the transitions at these indices by field name, in memory that the next call reuses."""
        size = len(places)
        room = len(next(iter(self.drawn.values()))) if self.drawn else 0
        if room < size:
            self.drawn = {
                dtype: torch.from_numpy(np.zeros((size, packed.shape[1]), dtype)) for dtype, packed in self.rows.items()
            }
            self.drawn_fields = self.layout.tensors(self.drawn)
        for dtype, packed in self.rows.items():
            # Without mode="clip" numpy would go through a buffer of its own; the places are in range.
            np.take(packed, places, axis=0, out=self.drawn[dtype].numpy()[:size], mode="clip")
        if room > size:
            return {name: field[:size] for name, field in self.drawn_fields.items()}
        return self.drawn_fields

    def state_dict(self) -> State:
        """Returns the ring in segments that share its memory: a caller that keeps them must copy them."""
        filled = len(self)
        return {
            "num_added": self.num_added,
            "rows": {
                dtype: [
                    self._segment(dtype, number, segment)
                    for number, segment in enumerate(self.segments)
                    if segment.start < filled
                ]
                for dtype in self.rows
            },
        }

    def load_state_dict(self, state: State) -> None:
        self.num_added = require_count("num_added", state["num_added"])
        self.hashes.clear()
        filled = [segment for segment in self.segments if segment.start < len(self)]
        for dtype, packed in self.rows.items():
            for segment, rows in zip(filled, state["rows"][dtype], strict=True):
                into = packed[segment.start : min(segment.stop, len(self))]
                require_shapes(f"memory.{dtype}", rows, into)
                np.copyto(into, np.asarray(rows), casting="no")
        for segment in filled:
            places = slice(segment.start, min(segment.stop, len(self)))
            self.layout.require_choices("memory", {dtype: packed[places] for dtype, packed in self.rows.items()})

    def _segment(self, dtype: str, number: int, segment: range) -> BulkArray:
        rows = self.rows[dtype][segment.start : min(segment.stop, len(self))]
        changed_at = self._changed_at(segment)
        known = self.hashes.get((dtype, number))
        bulk = BulkArray(rows, known[1] if known is not None and known[0] == changed_at else None)
        self.hashes[dtype, number] = (changed_at, bulk.sha256)
        return bulk

    def _changed_at(self, segment: range) -> int:
        """Returns the count of added rows when this segment was last changed."""
        round_number, place = divmod(self.num_added, self.buffer_size)
        if place > segment.start:
            return round_number * self.buffer_size + min(place, segment.stop)
        return (round_number - 1) * self.buffer_size + segment.stop
