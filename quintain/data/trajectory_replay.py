"""From trajectories of agents to transitions that replay keeps, all rows of a block at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.data import fields as f
from quintain.data.replay_batch import ReplayBatch, WritesTransitions
from quintain.data.replay_memory import ReplayMemory
from quintain.data.rollout import Rollout
from quintain.data.sequence_block import SequenceBlock
from quintain.data.trajectory import TrajectoryBlock

if TYPE_CHECKING:
    from quintain.typing import Array, State


class TrajectoryTransitions:
    """Writes one transition for each step of a block: trajectories are whole, so that nothing stays open."""

    def __init__(self, memory: ReplayMemory) -> None:
        self.memory = memory
        self.layout = memory.layout

    def write(self, rollout: Rollout, reward: Array, gamma: float) -> None:
        """Adds the steps of a block, given the reward of each [T, 1]."""
        rows = self.layout.allocate(rollout.num_steps)
        columns = self.layout.views(rows)
        ends = rollout.array(f.DONE)[:-1, 0]
        for name in self.layout.before:
            columns[name][...] = rollout.array(name)[:-1, 0]
        for name in self.layout.after:
            self._write_following(columns[name], rollout, name.removeprefix(f.NEXT), ends)
        columns[f.REWARD][...] = reward[:, 0]
        columns[f.DISCOUNT][...] = np.float32(gamma) * ~rollout.array(f.TERMINATED)[:-1, 0]
        self.memory.add(rows)

    def _write_following(self, column: Array, rollout: Rollout, name: str, ends: Array) -> None:
        """Writes what each step led to: the next row, or what was seen after a trajectory's last step."""
        seen = rollout.array(name)[:, 0]
        column[...] = seen[1:]
        if name == f.ACTION_MASK:
            # What could have been chosen there nobody said.
            column[ends] = True
            return
        places = rollout.array(f.FINAL_INDEX)[:-1, 0]
        # After a true end nothing counts; what stands there only has to be finite.
        column[ends] = seen[:-1][ends]
        goes_on = places >= 0
        column[goes_on] = rollout.final.array(name)[places[goes_on]]

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restores nothing: between two blocks nothing is kept here."""


class TrajectoryReplayBatch(ReplayBatch):
    """The newest trajectories, and everything that is remembered."""

    def __init__(self, block: TrajectoryBlock | SequenceBlock, memory: ReplayMemory, writer: WritesTransitions) -> None:
        super().__init__(block, memory, writer)
        self.num_episodes = block.num_episodes
