"""The store of fragments of lanes that step together: several blocks in turn make one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.core.state import require_count
from quintain.data.fragments import FragmentBlock
from quintain.data.rollout import Batch, Rollout
from quintain.rollouts.settings import LockstepSettings
from quintain.rollouts.store import RolloutBuffer

if TYPE_CHECKING:
    from quintain.typing import State


class LockstepBuffer(RolloutBuffer):
    """A ring of blocks, of which `fragments_per_lane` in turn are joined: each lane of each is a fragment."""

    draws = True

    def __init__(self, block: Rollout, *more: Rollout, settings: LockstepSettings) -> None:
        super().__init__(block, *more, settings=settings)
        self.num_wanted = settings.fragments_per_lane
        """Blocks in a batch."""
        num_columns = block.num_lanes * self.num_wanted
        self.joined = FragmentBlock(block.spec, block.fields, num_lanes=num_columns, num_steps=block.num_steps)
        """The batch, as far as it was collected."""
        self.num_joined = self.joined_for = 0
        """Blocks in it, and the number of the last one."""

    def admit(self, version: int) -> bool:
        self._oldest.is_taken, block = True, self.block
        if self.joined_for != block.sequence:
            if self.num_joined in (0, self.num_wanted):
                self.joined.begin(block.sequence, version)
                self.num_joined = 0
            self.joined.append_block(block, 0)
            self.num_joined, self.joined_for = self.num_joined + 1, block.sequence
        return self.num_joined == self.num_wanted

    def batch_of(self, rollout: Rollout) -> Batch:
        return Batch(self.joined)

    def state_dict(self) -> State:
        is_taken = any(shelf.is_taken and not shelf.is_spent for shelf in self.shelves)
        is_needed = is_taken or 0 < self.num_joined < self.num_wanted
        return {
            **super().state_dict(),
            "joined": self.joined.state_dict() if is_needed else None,
            "numbers": [self.num_joined, self.joined_for],
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        num_joined, self.joined_for = (require_count("numbers", each) for each in state["numbers"])
        self.num_joined = require_count("numbers", num_joined, self.num_wanted)
        if state["joined"] is not None:
            self.joined.load_state_dict(state["joined"])
