"""The store of fragments, and what fills it: lanes that do not wait for each other, and their collector."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from quintain.core.state import require_count
from quintain.data import fields as f
from quintain.data.fragments import Fragment, FragmentBlock
from quintain.data.rollout import Batch, Rollout
from quintain.envs.hosts.ready_lanes import ReadyLanes
from quintain.errors import SettingsError
from quintain.rollouts.fragment_collector import FragmentCollector
from quintain.rollouts.settings import FragmentSettings
from quintain.rollouts.store import RolloutBuffer

if TYPE_CHECKING:
    from quintain.typing import State


class FragmentBuffer(RolloutBuffer):
    """A ring of blocks of new fragments, and fragments that may be learned from again.

    A batch is the new fragments and the kept ones. A fragment leaves when it was used `max_reuse` times, or when its
    first step is more than `max_staleness` versions old.
    """

    env_class: ClassVar[type[ReadyLanes]] = ReadyLanes
    block_class: ClassVar[type[FragmentBlock]] = FragmentBlock
    collector_class: ClassVar[type[FragmentCollector]] = FragmentCollector

    def __init__(self, block: Rollout, *more: Rollout, settings: FragmentSettings) -> None:
        super().__init__(block, *more)
        self.settings = settings
        self.num_ahead = len(more)
        """How many versions newer than a block's the learner is when it takes the block."""
        self.kept: list[Fragment] = []
        """Fragments that may be learned from, the oldest first."""
        columns = block.num_lanes * settings.max_reuse
        self.drawn = self._new_block(columns if settings.max_reuse > 1 else 1)
        """The batch of this cycle, where fragments are used again."""
        self.drawn_for = 0
        """The number of the block after which the batch was drawn."""
        self.num_new = self.num_episodes = 0
        """New steps of the batch, and episodes that ended in them."""
        self.num_dropped = 0
        """Steps of fragments that were too old before they were learned from."""

    def _new_block(self, num_columns: int) -> FragmentBlock:
        return FragmentBlock(self.block.spec, self.block.fields, num_lanes=num_columns, num_steps=self.block.num_steps)

    def batch_of(self, rollout: Rollout) -> Batch:
        """Returns the batch of a block of new fragments; the same one if it is asked for again."""
        assert isinstance(rollout, FragmentBlock)
        version = int(rollout.array(f.POLICY_VERSION)[:-1].max()) + self.num_ahead
        is_drawn = self.drawn_for == rollout.sequence
        if self.settings.max_reuse == 1:
            if not is_drawn:
                self._leave_out_stale(rollout, version)
            batch = Batch(rollout)
        else:
            if not is_drawn:
                self._draw(rollout, version)
            batch = Batch(self.drawn)
            batch.num_new, batch.num_episodes = self.num_new, self.num_episodes
        self.drawn_for = rollout.sequence
        steps, valid = (batch.rollout.array(name)[:-1] for name in (f.POLICY_VERSION, f.VALID))
        batch.metrics = {
            "fragments/dropped": float(self.num_dropped),
            "rollout/version_lag": float(version - steps[valid].mean()),
            "rollout/reuse": batch.num_valid / batch.num_new if batch.num_new else 0.0,
        }
        return batch

    def _leave_out_stale(self, rollout: FragmentBlock, version: int) -> None:
        is_stale = self._are_stale(rollout.array(f.POLICY_VERSION)[0], version)
        self.num_dropped += int(is_stale.sum()) * rollout.num_steps
        rollout.arrays[f.VALID][:, is_stale] = False
        if is_stale.all():
            raise self._nothing_is_left()

    def _draw(self, rollout: FragmentBlock, version: int) -> None:
        """Takes the new fragments in, leaves out those that are too old, and makes the batch."""
        known = [*self.kept, *(rollout.fragment(column) for column in range(rollout.num_fragments))]
        is_stale = self._are_stale(np.array([each.version for each in known]), version)
        lost = [each for each, stale in zip(known, is_stale, strict=True) if stale and not each.num_uses]
        self.num_dropped += len(lost) * rollout.num_steps
        chosen = [each for each, stale in zip(known, is_stale, strict=True) if not stale]
        if not chosen:
            raise self._nothing_is_left()
        self.drawn.begin(rollout.sequence, 0)
        self.drawn.put(chosen)
        self.drawn.leave_out_empty()
        new = [each for each in chosen if not each.num_uses]
        self.num_new, self.num_episodes = len(new) * rollout.num_steps, sum(len(each.endings) for each in new)
        for each in chosen:
            each.num_uses += 1
        self.kept = [each for each in chosen if each.num_uses < self.settings.max_reuse]

    def _are_stale(self, versions: np.ndarray, version: int) -> np.ndarray:
        if not self.settings.max_staleness:
            return np.zeros(len(versions), np.bool_)
        return version - versions > self.settings.max_staleness

    def _nothing_is_left(self) -> SettingsError:
        settings = self.settings
        return SettingsError(
            f"every fragment of a batch began more than rollout.max_staleness {settings.max_staleness} versions ago: "
            f"{settings.num_steps} steps of a lane take longer than that many updates. Raise max_staleness or "
            f"num_fragments, or lower num_steps",
            code="E0254",
        )

    def state_dict(self) -> State:
        waiting = self._new_block(max(1, len(self.kept)))
        waiting.put(self.kept)
        is_taken = any(shelf.is_taken and not shelf.is_spent for shelf in self.shelves)
        return {
            **super().state_dict(),
            "kept": waiting.state_dict(),
            "num_uses": [each.num_uses for each in self.kept],
            "drawn": self.drawn.state_dict() if is_taken and self.settings.max_reuse > 1 else None,
            "drawn_for": self.drawn_for,
            "new": [self.num_new, self.num_episodes],
            "dropped": self.num_dropped,
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        uses = [require_count("num_uses", each, self.settings.max_reuse) for each in state["num_uses"]]
        waiting = self._new_block(max(1, len(uses)))
        waiting.load_state_dict(state["kept"])
        self.kept = [waiting.fragment(column) for column in range(len(uses))]
        for fragment, num_uses in zip(self.kept, uses, strict=True):
            fragment.num_uses = num_uses
        if state["drawn"] is not None:
            self.drawn.load_state_dict(state["drawn"])
        self.drawn_for = require_count("drawn_for", state["drawn_for"])
        self.num_new, self.num_episodes = (require_count("new", each) for each in state["new"])
        self.num_dropped = require_count("dropped", state["dropped"])
