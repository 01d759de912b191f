"""The blocks of one behaviour in an asynchronous source, each with a copy of the weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quintain.core.state import as_tensor, require_count, require_shapes
from quintain.data.rollout import Rollout
from quintain.placements.commands import Lend
from quintain.placements.snapshots import Label, PublishedWeights, Snapshot, take_snapshot
from quintain.policies.base import Policy
from quintain.rollouts.store import RolloutStore

if TYPE_CHECKING:
    from quintain.typing import State


@dataclass
class Share:
    """Blocks of one behaviour by where they are: free, reserved, or at the actor."""

    behavior: str
    policy: Policy
    blocks: Sequence[Rollout]
    snapshots: Sequence[Snapshot]
    """One copy of the weights per block; empty where collectors take the newest ones between two acts."""
    published: PublishedWeights | None = None
    """The newest weights, for collectors that take them between two acts."""
    published_for: Label | None = None
    """The version and session that were published last."""
    version: int = 0
    """The newest published version."""
    waiting: deque[Lend] = field(default_factory=deque)
    """Blocks that are reserved and not yet sent."""
    open: deque[Lend] = field(default_factory=deque)
    """Blocks that the actor is filling, the current one first."""
    taken: dict[int, int] = field(default_factory=dict)
    """Which snapshot each block has: a number that changes whenever its weights are copied anew."""
    num_taken: int = 0
    is_retired: bool = False
    """Whether the actor knows that this behaviour no longer learns."""

    @property
    def num_lent(self) -> int:
        return len(self.open) + len(self.waiting)

    def offer(self, version: int, session: int) -> None:
        """Makes the policy's weights the newest, as this version; where blocks have weights, only records it."""
        self.version = version
        if self.published is not None:
            self.published_for = Label(version, session)
            self.published.publish(self.published_for, self.policy)

    def reserve(self, store: RolloutStore) -> None:
        """Reserves every free block, with a snapshot of the current weights."""
        if self.published is not None and self.published_for != (self.version, store.session):
            self.offer(self.version, store.session)
        while (block := store.reserve()) is not None:
            number = next(number for number, each in enumerate(self.blocks) if each is block)
            self._snapshot(number)
            self.waiting.append(Lend(self.behavior, number, self.version))

    def require_lends(self, lends: Sequence[State]) -> None:
        """Refuses lent blocks of a saved state with an unknown index, or with weights of other names or shapes."""
        for saved in lends:
            number = require_count("block", saved["block"], len(self.blocks) - 1)
            require_count("version", saved["version"])
            require_shapes(f"lent.{self.behavior}", saved["weights"], self.snapshots[number])

    def reserve_saved(self, store: RolloutStore, lends: Sequence[State]) -> None:
        """Reserves the blocks that a checkpoint lists as lent, with their saved weights."""
        for saved in lends:
            number = saved["block"]
            if store.reserve() is not self.blocks[number]:
                raise ValueError(f"block {number} of {self.behavior} is not the next to be filled")
            self._snapshot(number)
            for key, value in saved["weights"].items():
                self.snapshots[number][key].copy_(as_tensor(value))
            self.waiting.append(Lend(self.behavior, number, saved["version"]))

    def send_next(self) -> Lend | None:
        """Returns the next reserved block, or None."""
        if not self.waiting:
            return None
        lend = self.waiting.popleft()
        self.open.append(lend)
        self.is_retired = False
        return lend

    def take_back(self, store: RolloutStore, lends: deque[Lend]) -> None:
        """Takes unfilled blocks back from the actor; their contents stay."""
        while lends:
            store.take_back(self.blocks[lends.popleft().block])

    def last_weights(self) -> int:
        """Copies the newest weights to the snapshot of a block that the actor does not use; returns its index."""
        # Weights of a block that the actor has may not have been read yet.
        taken = {lend.block for lend in self.open}
        number = next(number for number in range(len(self.blocks)) if number not in taken)
        self._snapshot(number)
        return number

    def _snapshot(self, number: int) -> None:
        take_snapshot(self.policy, self.snapshots[number])
        self.num_taken += 1
        self.taken[number] = self.num_taken

    def saved_lends(self) -> list[State]:
        """Returns all lent blocks with their weights, in order."""
        return [
            {
                "block": lend.block,
                "version": lend.version,
                "weights": {name: value.clone() for name, value in self.snapshots[lend.block].items()},
            }
            for lend in (*self.open, *self.waiting)
        ]

    def forget(self) -> None:
        """Clears all lent blocks, before a state is loaded."""
        self.waiting.clear()
        self.open.clear()
        self.is_retired = False
        self.published_for = None
