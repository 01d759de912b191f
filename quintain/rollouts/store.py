"""The only place where experience waits: a fixed number of blocks, so that nobody can run ahead further than allowed.

With staleness 0 there is one block per update. It is free again only when the learner has consumed it, published, and
begun the next cycle; acting ahead of learning is impossible by construction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quintain.data.rollout import Batch, Rollout

if TYPE_CHECKING:
    from quintain.typing import State


class RolloutStore(Protocol):
    """Hands out free blocks, keeps filled ones, and decides when there is enough to learn from."""

    def reserve(self) -> Rollout | None: ...
    def commit(self, rollout: Rollout) -> None: ...
    def ready(self) -> bool: ...
    def take(self) -> Batch: ...
    def spend(self) -> None: ...
    def release(self) -> None: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class RolloutBuffer:
    """One block: reserved, filled, taken, released."""

    def __init__(self, block: Rollout) -> None:
        self.block = block
        self.is_lent = False
        self.is_open = False
        self.is_committed = False
        self.is_taken = False
        self.is_spent = False

    def reserve(self) -> Rollout | None:
        """Lends the block to a collector; after a resume it may be half full already."""
        if self.is_lent or self.is_committed:
            return None
        self.is_lent = self.is_open = True
        return self.block

    def commit(self, rollout: Rollout) -> None:
        if rollout is not self.block or not self.is_lent:
            raise ValueError("only the block that was reserved can be committed, once")
        self.is_lent = self.is_open = False
        self.is_committed = True

    def ready(self) -> bool:
        return self.is_committed

    def take(self) -> Batch:
        self.is_taken = True
        return Batch(self.block)

    def spend(self) -> None:
        """Says that nobody will learn from what was taken again: it can still be read, and need not be saved."""
        self.is_spent = self.is_taken

    def release(self) -> None:
        """Frees what the last update consumed; what was filled and not yet taken stays."""
        if self.is_taken:
            self.is_committed = self.is_taken = self.is_spent = False

    def state_dict(self) -> State:
        """Saves the block's contents only while they are still needed."""
        in_use = (self.is_open or self.is_committed) and not self.is_spent
        return {
            "is_open": self.is_open,
            "is_committed": self.is_committed,
            "is_taken": self.is_taken,
            "sequence": self.block.sequence,
            "block": self.block.state_dict() if in_use else None,
        }

    def load_state_dict(self, state: State) -> None:
        self.is_open, self.is_committed = state["is_open"], state["is_committed"]
        self.is_taken = state["is_taken"]
        self.is_spent = self.is_taken and state["block"] is None
        self.block.sequence = state["sequence"]
        if state["block"] is not None:
            self.block.load_state_dict(state["block"])
