"""The replay buffer of off-policy algorithms: a store that keeps experience after it was learned from."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from quintain.data import fields as f
from quintain.data.replay_memory import Allocator, ReplayMemory
from quintain.data.rollout import Batch, Rollout
from quintain.data.row_layout import RowLayout
from quintain.data.transitions import TransitionWriter
from quintain.rollouts.settings import ReplaySettings, TrajectoryReplaySettings
from quintain.rollouts.store import RolloutBuffer

if TYPE_CHECKING:
    from quintain.typing import State


class ReplayBuffer(RolloutBuffer):
    """Blocks to fill, and a replay buffer of transitions, or of sequences for a recurrent policy."""

    def __init__(
        self,
        block: Rollout,
        *more: Rollout,
        settings: ReplaySettings | TrajectoryReplaySettings,
        keep: Collection[str] = (),
        allocate: Allocator = np.zeros,
    ) -> None:
        """Allocates the replay buffer; declared fields in `keep` are stored with each step."""
        super().__init__(block, *more, settings=settings)
        layout, num_rows = replay_rows(block, settings, keep)
        self.memory = ReplayMemory(layout, num_rows, allocate)
        self.keeps_open = not (block.is_whole or layout.horizon)
        """Whether transitions begin in one block and are completed in another."""
        self.writer = TransitionWriter(
            self.memory, block.num_lanes if self.keeps_open else 0, settings.num_return_steps
        )

    def batch_of(self, rollout: Rollout) -> Batch:
        return Batch(rollout, self.writer)

    def state_dict(self) -> State:
        state = {**super().state_dict(), "memory": self.memory.state_dict()}
        return {**state, "writer": self.writer.state_dict()} if self.keeps_open else state

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])
        if self.keeps_open:
            self.writer.load_state_dict(state["writer"])

    def begin_anew(self, state: State, *, is_learned: bool = False) -> None:
        """Keeps the replay buffer of a store that had other lanes; experience that is not complete is dropped."""
        self.memory.load_state_dict(state["memory"])


def replay_rows(
    block: Rollout, settings: ReplaySettings | TrajectoryReplaySettings, keep: Collection[str] = ()
) -> tuple[RowLayout, int]:
    """Returns row layout and capacity of the replay buffer: transitions, or sequences with as many steps."""
    kept = [path for name in keep for path in f.names_of(name, block.declared_names)]
    extra = {path: block.fields[path] for path in kept}
    (state_size,) = block.fields[f.POLICY_STATE].shape
    if not state_size:
        return RowLayout(block.spec, extra), settings.buffer_size
    horizon = settings.sequence_steps
    return RowLayout(block.spec, extra, horizon=horizon, state_size=state_size), settings.buffer_size // horizon
