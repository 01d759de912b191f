"""Assigns every present agent a slot (a row of arrays) from its first report until it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.core.state import KeepsState

if TYPE_CHECKING:
    from quintain.typing import Array

ABSENT = -1


class AgentSlots(KeepsState):
    """Finds slots by agent id for many agents at once; freed slots are used again, the lowest first.

    >>> slots = AgentSlots()
    >>> slots.add(np.array([70, 7])).tolist(), slots.find(np.array([7, 8])).tolist()
    ([0, 1], [1, -1])
    """

    def __init__(self) -> None:
        self.is_used: Array = np.zeros(0, np.bool_)
        self.ids: Array = np.zeros(0, np.int64)
        """Ids of the agents that are present, ascending."""
        self.places: Array = np.zeros(0, np.int64)
        """Their slots."""

    @property
    def capacity(self) -> int:
        """Total number of slots, used or free."""
        return len(self.is_used)

    def find(self, ids: Array) -> Array:
        """Returns the slots of agents [n]; ABSENT (-1) where an agent is not present."""
        if not len(self.ids):
            return np.full(len(ids), ABSENT, np.int64)
        at = np.searchsorted(self.ids, ids)
        np.minimum(at, len(self.ids) - 1, out=at)
        return np.where(self.ids[at] == ids, self.places[at], ABSENT)

    def add(self, ids: Array) -> Array:
        """Assigns slots to agents [n] that are not present, and returns them."""
        missing = len(ids) - int(np.count_nonzero(~self.is_used))
        if missing > 0:
            room = max(missing, self.capacity, 8)
            self.is_used = np.concatenate((self.is_used, np.zeros(room, np.bool_)))
        free = np.flatnonzero(~self.is_used)[: len(ids)]
        self.is_used[free] = True
        self._arrange(np.concatenate((self.ids, ids)), np.concatenate((self.places, free)))
        return free

    def remove(self, slots: Array) -> None:
        """Frees the slots of agents that ended."""
        self.is_used[slots] = False
        stay = self.is_used[self.places]
        self.ids, self.places = self.ids[stay], self.places[stay]

    def _arrange(self, ids: Array, places: Array) -> None:
        order = np.argsort(ids, kind="stable")
        self.ids, self.places = ids[order], places[order]
