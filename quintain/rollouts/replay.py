"""The store of off-policy algorithms: the newest block waits as in any store, and what was learned from it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from quintain.data.replay_batch import ReplayBatch
from quintain.data.replay_memory import Allocator, ReplayMemory
from quintain.data.rollout import Rollout
from quintain.data.row_layout import RowLayout
from quintain.data.transitions import TransitionWriter
from quintain.rollouts.settings import ReplaySettings
from quintain.rollouts.store import RolloutBuffer

if TYPE_CHECKING:
    from quintain.typing import State


class ReplayBuffer(RolloutBuffer):
    """Blocks to fill, and a memory of transitions to draw from."""

    def __init__(
        self,
        block: Rollout,
        settings: ReplaySettings,
        allocate: Allocator = np.zeros,
        *,
        more_blocks: Sequence[Rollout] = (),
    ) -> None:
        super().__init__(block, *more_blocks)
        self.memory = ReplayMemory(RowLayout(block.spec), settings.buffer_size, allocate)
        self.writer = TransitionWriter(self.memory, block.num_lanes, settings.num_return_steps)

    def batch_of(self, rollout: Rollout) -> ReplayBatch:
        return ReplayBatch(rollout, self.memory, self.writer)

    def state_dict(self) -> State:
        return {**super().state_dict(), "memory": self.memory.state_dict(), "writer": self.writer.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])
        self.writer.load_state_dict(state["writer"])
