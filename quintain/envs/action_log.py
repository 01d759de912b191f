"""The actions of every lane since its last reset, so that an environment without state access can be rebuilt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from quintain.typing import Array, State


class ActionLog:
    """Keeps one row per step for all lanes; rows before every lane's reset are dropped when room is needed."""

    def __init__(self, num_lanes: int, action_shape: tuple[int, ...], dtype: str) -> None:
        self.rows: Array = np.zeros((1024, num_lanes, *action_shape), dtype=dtype)
        self.length = 0
        self.start: Array = np.zeros(num_lanes, dtype=np.int64)

    def start_episode(self, lane: int) -> None:
        self.start[lane] = self.length

    def append(self, action: Array) -> None:
        if self.length == len(self.rows):
            self._make_room()
        self.rows[self.length] = action
        self.length += 1

    def since_reset(self, lane: int) -> Array:
        return self.rows[self.start[lane] : self.length, lane]

    def _make_room(self) -> None:
        oldest = int(self.start.min())
        kept = self.rows[oldest : self.length]
        # Doubling keeps the cost per step constant when one lane never ends its episode.
        if oldest <= len(self.rows) // 2:
            self.rows = np.zeros((2 * len(self.rows), *self.rows.shape[1:]), self.rows.dtype)
        self.rows[: len(kept)] = kept.copy()
        self.length = len(kept)
        self.start -= oldest

    def state_dict(self) -> State:
        oldest = int(self.start.min())
        return {"rows": self.rows[oldest : self.length].copy(), "start": self.start - oldest}

    def load_state_dict(self, state: State) -> None:
        rows: Any = np.asarray(state["rows"])
        self.length = len(rows)
        if self.length > len(self.rows):
            self.rows = np.zeros((2 * self.length, *self.rows.shape[1:]), self.rows.dtype)
        self.rows[: self.length] = rows
        np.copyto(self.start, state["start"])
