"""Where whole trajectories wait until there are enough of them for an update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from quintain.data.replay_batch import WritesTransitions
from quintain.data.replay_memory import Allocator, ReplayMemory
from quintain.data.rollout import Batch, Rollout
from quintain.data.row_layout import RowLayout
from quintain.data.sequence_block import SequenceBlock
from quintain.data.sequence_replay import SequenceLayout, SequenceWriter
from quintain.data.spec import BehaviorSpec
from quintain.data.trajectory import TrajectoryBatch, TrajectoryBlock
from quintain.data.trajectory_replay import TrajectoryReplayBatch, TrajectoryTransitions
from quintain.rollouts.settings import TrajectoryReplaySettings, TrajectorySettings
from quintain.rollouts.store import RolloutBuffer, RolloutStore

if TYPE_CHECKING:
    from quintain.typing import State


class TrajectoryStore(RolloutStore, Protocol):
    """A store that trajectories can be put into as they end."""

    @property
    def is_lent(self) -> bool: ...
    @property
    def has_waiting(self) -> bool: ...
    @property
    def is_spent(self) -> bool: ...
    @property
    def is_full(self) -> bool: ...
    @property
    def utilisation(self) -> float: ...
    @property
    def trajectories(self) -> Any: ...


class RaggedBuffer(RolloutBuffer):
    """A ring of blocks to which trajectories are appended: a block begins empty when it is reserved."""

    def reserve(self) -> Rollout | None:
        # After a resume it may be half full already.
        half_full = [shelf.block for shelf in self.shelves if shelf.is_open]
        block = super().reserve()
        if block is not None and not any(block is each for each in half_full):
            block.begin(block.sequence + 1, 0)
        return block

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for shelf in self.shelves:
            if not shelf.is_needed:
                shelf.block.begin(shelf.number, 0)


class TrajectoryBuffer(RaggedBuffer):
    """Blocks that take trajectories until they have enough steps, one after another; the last may make one longer."""

    def __init__(
        self,
        block: TrajectoryBlock | SequenceBlock,
        settings: TrajectorySettings | TrajectoryReplaySettings,
        *more: TrajectoryBlock | SequenceBlock,
    ) -> None:
        super().__init__(block, *more)
        self.steps_per_batch = settings.steps_per_batch

    @property
    def trajectories(self) -> Any:
        """The block that trajectories go into now, or that they went into last."""
        lent = (shelf.block for shelf in self.shelves if shelf.is_lent)
        return next(lent, self.block)

    @property
    def is_lent(self) -> bool:
        return any(shelf.is_lent for shelf in self.shelves)

    @property
    def is_spent(self) -> bool:
        return any(shelf.is_spent for shelf in self.shelves)

    @property
    def has_waiting(self) -> bool:
        """Whether a whole batch waits that nobody has taken."""
        return any(shelf.is_committed and not shelf.is_taken for shelf in self.shelves)

    @property
    def is_full(self) -> bool:
        """Whether what was collected is enough for an update."""
        return self.is_lent and self.trajectories.num_held >= self.steps_per_batch

    def batch_of(self, rollout: Rollout) -> Batch:
        return TrajectoryBatch(rollout)  # type: ignore[arg-type]  # it was made with blocks of trajectories

    @property
    def utilisation(self) -> float:
        """The part of a batch that is there."""
        return min(1.0, float(self.trajectories.num_held / self.steps_per_batch))


class TrajectoryReplay(TrajectoryBuffer):
    """The same blocks, and a memory to draw from: of transitions, or of whole sequences for a policy with memory."""

    def __init__(
        self,
        block: TrajectoryBlock | SequenceBlock,
        settings: TrajectoryReplaySettings,
        *more: TrajectoryBlock | SequenceBlock,
        allocate: Allocator = np.zeros,
    ) -> None:
        super().__init__(block, settings, *more)
        layout, num_rows = replay_rows(block.spec, settings, block.policy_state.shape[1])
        self.memory = ReplayMemory(layout, num_rows, allocate)
        self.writer: WritesTransitions = (
            SequenceWriter(self.memory, layout)
            if isinstance(layout, SequenceLayout)
            else TrajectoryTransitions(self.memory)
        )

    def batch_of(self, rollout: Rollout) -> TrajectoryReplayBatch:
        return TrajectoryReplayBatch(rollout, self.memory, self.writer)  # type: ignore[arg-type]  # as above

    def state_dict(self) -> State:
        return {**super().state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])


def replay_rows(spec: BehaviorSpec, settings: TrajectoryReplaySettings, state_size: int) -> tuple[RowLayout, int]:
    """Returns what a row of replay holds, and how many there are: transitions, or sequences of as many in all."""
    if not state_size:
        return RowLayout(spec), settings.buffer_size
    return SequenceLayout(spec, settings.time_horizon, state_size), settings.buffer_size // settings.time_horizon
