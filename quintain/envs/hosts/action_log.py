"""Logs the actions of every lane since its last reset, so that an environment without state access can be rebuilt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from quintain.core.state import require_count, require_within
from quintain.data.spec import LeafSpec, require_choices

if TYPE_CHECKING:
    from quintain.typing import Array, State


class ActionLog:
    """Stores one row per step for all lanes; rows before every lane's reset are dropped when space is needed."""

    def __init__(self, num_lanes: int, leaves: Mapping[str, LeafSpec]) -> None:
        self.rows: dict[str, Array] = {
            name: np.zeros((1024, num_lanes, *leaf.shape), dtype=leaf.dtype) for name, leaf in leaves.items()
        }
        self.leaves = dict(leaves)
        self.capacity = 1024
        self.length = 0
        self.start: Array = np.zeros(num_lanes, dtype=np.int64)

    def start_episode(self, lane: int) -> None:
        self.start[lane] = self.length

    def append(self, action: Mapping[str, Array]) -> None:
        if self.length == self.capacity:
            self._make_room()
        for name, value in action.items():
            self.rows[name][self.length] = value
        self.length += 1

    def since_reset(self, lane: int) -> list[dict[str, Array]]:
        """Returns the lane's actions, one mapping of leaves per step."""
        steps = range(self.start[lane], self.length)
        return [{name: rows[t, lane] for name, rows in self.rows.items()} for t in steps]

    def _make_room(self) -> None:
        oldest = int(self.start.min())
        # Doubling keeps the cost per step constant when one lane never ends its episode.
        if oldest <= self.capacity // 2:
            self.capacity *= 2
        for name, rows in self.rows.items():
            room = np.zeros((self.capacity, *rows.shape[1:]), rows.dtype)
            room[: self.length - oldest] = rows[oldest : self.length]
            self.rows[name] = room
        self.length -= oldest
        self.start -= oldest

    def state_dict(self) -> State:
        oldest = int(self.start.min())
        rows = {name: rows[oldest : self.length].copy() for name, rows in self.rows.items()}
        return {"rows": rows, "length": self.length - oldest, "start": self.start - oldest}

    def load_state_dict(self, state: State) -> None:
        length = require_count("action_log.length", state["length"])
        require_within("action_log.start", state["start"], 0, length)
        for name, rows in self.rows.items():
            # Before any room is made for it.
            saved, shape = state["rows"][name], (length, *rows.shape[1:])
            if np.shape(saved) != shape:
                raise ValueError(f"action_log.{name} has the shape {np.shape(saved)}, expected {shape}")
            require_choices(self.leaves[name], f"action_log.{name}", saved)
        self.length = length
        self.capacity = max(self.capacity, 2 * self.length)
        for name, rows in self.rows.items():
            self.rows[name] = np.zeros((self.capacity, *rows.shape[1:]), rows.dtype)
            self.rows[name][: self.length] = state["rows"][name]
        np.copyto(self.start, state["start"])
