"""What one update of an off-policy algorithm consumes: the newest steps, and everything that is remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from quintain.data.replay_memory import ReplayMemory
from quintain.data.rollout import Batch, Rollout

if TYPE_CHECKING:
    from quintain.typing import Array


class WritesTransitions(Protocol):
    """Makes transitions from the steps of a block."""

    def write(self, rollout: Rollout, reward: Array, gamma: float) -> None: ...


class ReplayBatch(Batch):
    """Counts the steps of the newest block, and draws from all that came before."""

    def __init__(self, rollout: Rollout, memory: ReplayMemory, writer: WritesTransitions) -> None:
        super().__init__(rollout)
        self.memory = memory
        self.writer = writer

    def remember(self, reward: Array, gamma: float) -> None:
        """Puts the newest steps into the memory, with their rewards [T, N]."""
        self.writer.write(self.rollout, reward, gamma)
