"""Stores of experience: a fixed number of blocks, which bounds how far acting runs ahead of learning.

There is one block more than the maximum staleness. A block is free again only when the learner has consumed it,
published, and begun the next cycle: with one block, acting and learning alternate by construction.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from quintain.core.state import require_count
from quintain.data.rollout import Batch, Rollout

if TYPE_CHECKING:
    from quintain.typing import State


class RolloutStore(Protocol):
    """Provides free blocks, keeps filled ones, and decides when there is enough data for an update."""

    session: int
    """Number of the learner's session, for stores that refuse experience of another."""
    draws: bool
    """Whether batches are drawn from what is kept (`admit`), so that a full block may not be enough for one."""

    def reserve(self) -> Rollout | None: ...
    def take_back(self, rollout: Rollout) -> None: ...
    def commit(self, rollout: Rollout) -> None: ...
    def ready(self) -> bool: ...
    def admit(self, version: int) -> bool:
        """Takes the oldest full block in, at this version of the learner; returns whether a batch can be drawn."""

    def take(self) -> Batch: ...
    def mark_consumed(self) -> None: ...
    def release(self) -> None: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...
    def begin_anew(self, state: State, *, is_learned: bool = False) -> None:
        """Continues after a store that had other lanes; `is_learned` if its last batch had been learned from."""


class StoreSettings(Protocol):
    """The settings of a store."""

    @property
    def steps_per_batch(self) -> int:
        """Steps of trajectories in a batch; 0 for lanes, whose blocks are always full."""


@dataclass
class _Shelf:
    """A block and its lifecycle: free, reserved, committed, taken, consumed, and free again."""

    block: Rollout = field(compare=False)
    number: int = 0
    """The number of its reservation in the store."""
    is_lent: bool = False
    """Held by a collector of this process; not saved, because a resume lends it again."""
    is_open: bool = False
    """Reserved and not committed: it may be partly filled."""
    is_committed: bool = False
    is_taken: bool = False
    is_spent: bool = False
    """Taken and consumed: not learned from again."""

    @property
    def is_needed(self) -> bool:
        return (self.is_open or self.is_committed) and not self.is_spent


class RolloutBuffer:
    """A ring of blocks; each is reserved, filled, taken and released in turn.

    A block of lanes is filled by its collector and is one batch. A block of trajectories takes those that end until it
    has enough steps; the last may exceed the size.
    """

    session = 0
    draws = False

    def __init__(self, block: Rollout, *more: Rollout, settings: StoreSettings | None = None) -> None:
        self.shelves = [_Shelf(each) for each in (block, *more)]
        self.steps_per_batch = 0 if settings is None else settings.steps_per_batch

    @property
    def block(self) -> Rollout:
        """The learner's current block, or its next one."""
        return self._oldest.block

    def begin_anew(self, state: State, *, is_learned: bool = False) -> None:
        """Continues after a store that had other lanes; what is in its blocks is dropped."""

    def reserve(self) -> Rollout | None:
        """Lends a free block to a collector, oldest first; after a resume it may be partly filled."""
        for shelf in self._in_order():
            if shelf.is_open and not shelf.is_lent:
                shelf.is_lent = True
                return shelf.block
        for shelf in self._in_order():
            if not (shelf.is_open or shelf.is_committed):
                newest = max(each.number for each in self.shelves)
                # A collector numbers a block when it begins it: the next number after the one it finds.
                shelf.number, shelf.block.sequence = newest + 1, newest
                shelf.is_lent = shelf.is_open = True
                if shelf.block.is_whole:
                    shelf.block.begin(shelf.number, 0)
                return shelf.block
        return None

    def take_back(self, rollout: Rollout) -> None:
        """Takes an unfilled block back; its contents stay."""
        for shelf in self.shelves:
            if shelf.block is rollout:
                shelf.is_lent = False

    @property
    def trajectories(self) -> Any:
        """The block that trajectories go to now, or went to last."""
        lent = (shelf.block for shelf in self.shelves if shelf.is_lent)
        return next(lent, self.block)

    @property
    def is_lent(self) -> bool:
        """Whether a collector has a block."""
        return any(shelf.is_lent for shelf in self.shelves)

    @property
    def has_waiting(self) -> bool:
        """Whether a full batch can be taken."""
        return any(shelf.is_committed and not shelf.is_taken for shelf in self.shelves)

    @property
    def is_full(self) -> bool:
        """Whether the collected trajectories are enough for an update."""
        return self.is_lent and self.trajectories.num_held >= self.steps_per_batch

    @property
    def utilisation(self) -> float:
        """The filled fraction of a batch of trajectories."""
        return min(1.0, float(self.trajectories.num_held / self.steps_per_batch))

    def commit(self, rollout: Rollout) -> None:
        for shelf in self.shelves:
            if shelf.block is rollout and shelf.is_lent:
                shelf.is_lent = shelf.is_open = False
                shelf.is_committed = True
                return
        raise ValueError("only a block that was reserved can be committed, once")

    def ready(self) -> bool:
        return any(shelf.is_committed for shelf in self.shelves)

    def admit(self, version: int) -> bool:
        """Does nothing: a full block is a batch."""
        return True

    def take(self) -> Batch:
        """Returns the oldest filled block; it stays the oldest until it is released."""
        self._oldest.is_taken = True
        return self.batch_of(self.block)

    def batch_of(self, rollout: Rollout) -> Batch:
        """Returns the batch of a filled block; a replay buffer adds its contents here."""
        return Batch(rollout)

    def mark_consumed(self) -> None:
        """Marks the taken data as consumed: it can still be read, but is not saved."""
        for shelf in self.shelves:
            shelf.is_spent = shelf.is_taken

    def spend(self) -> None:
        """Deprecated: `mark_consumed`."""
        warnings.warn("RolloutBuffer.spend() is mark_consumed() now", DeprecationWarning, stacklevel=2)
        self.mark_consumed()

    def release(self) -> None:
        """Frees the block of the last update; filled blocks that were not taken stay."""
        for shelf in self.shelves:
            if shelf.is_taken:
                shelf.is_committed = shelf.is_taken = shelf.is_spent = False

    def state_dict(self) -> State:
        """Saves a block's contents only while they are needed."""
        blocks = {
            str(place): {
                "number": shelf.number,
                "is_open": shelf.is_open,
                "is_committed": shelf.is_committed,
                "is_taken": shelf.is_taken,
                "block": shelf.block.state_dict() if shelf.is_needed else None,
            }
            for place, shelf in enumerate(self.shelves)
        }
        return {"blocks": blocks}

    def load_state_dict(self, state: State) -> None:
        for shelf, saved in zip(self.shelves, state["blocks"].values(), strict=True):
            shelf.is_lent, shelf.number = False, require_count("number", saved["number"])
            shelf.is_open, shelf.is_committed = bool(saved["is_open"]), bool(saved["is_committed"])
            shelf.is_taken = bool(saved["is_taken"])
            shelf.is_spent = shelf.is_taken and saved["block"] is None
            if saved["block"] is not None:
                shelf.block.load_state_dict(saved["block"])
                if shelf.is_committed and not shelf.block.has_steps:
                    raise ValueError("a block to learn from has no step that counts")
            if shelf.block.is_whole and not shelf.is_needed:
                shelf.block.begin(shelf.number, 0)

    @property
    def _oldest(self) -> _Shelf:
        return min(self.shelves, key=lambda shelf: (not shelf.is_committed, shelf.number))

    def _in_order(self) -> list[_Shelf]:
        return sorted(self.shelves, key=attrgetter("number"))
