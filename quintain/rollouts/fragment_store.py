"""The store of fragments, and the names of what fills it: their block, their lanes and their collector."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from quintain.core.rng import Rng
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
    from quintain.typing import Metrics, State

REASONS = ("stale", "capacity", "session")
"""Why fragments are dropped: too old, too many, or of another session."""


class FragmentBuffer(RolloutBuffer):
    """A ring of blocks of new fragments, and a pool of fragments that batches are drawn from.

    A batch is drawn from the pool without replacement, by a random stream of its own. A fragment leaves the pool when
    it was used `max_reuse` times, when its first step is more than `max_staleness` versions old, or when it is the
    oldest of more than `capacity`. While blocks and pool are full, collectors wait.
    """

    env_class: ClassVar[type[ReadyLanes]] = ReadyLanes
    block_class: ClassVar[type[FragmentBlock]] = FragmentBlock
    collector_class: ClassVar[type[FragmentCollector]] = FragmentCollector
    draws = True

    def __init__(self, block: Rollout, *more: Rollout, settings: FragmentSettings, rng: Rng | None = None) -> None:
        """Takes the blocks, whose columns are this rank's share of an update's new fragments."""
        super().__init__(block, *more)
        self.settings = settings
        self.rng = rng or Rng(0).child("fragments")
        self.session = 1
        """Number of the learner's session: a resume begins another, and fragments of others are refused."""
        self.num_wanted = block.num_lanes * settings.max_reuse
        """Fragments in the next batch."""
        num_ranks = max(1, settings.num_new // block.num_lanes)
        self.capacity = (
            self.num_wanted * settings.max_reuse + block.num_lanes
            if settings.capacity is None
            else settings.capacity // num_ranks
        )
        self.request(self.num_wanted)
        self.pool: list[Fragment] = []
        """Fragments that may be learned from, in the order in which they arrived."""
        self.version = 0
        """The version of the learner when it last took fragments in."""
        self.admitted_for = self.drawn_for = 0
        """The number of the block that was taken in last, and of the one after which the batch was drawn."""
        self.drawn = self._new_block(1)
        """The batch of this cycle."""
        self.num_new = self.num_episodes = 0
        """Steps of the batch that were not in an earlier one, and episodes that ended in them."""
        self.num_dropped = dict.fromkeys(REASONS, 0)
        """Steps of fragments that were dropped before they were learned from."""
        self.batch_metrics: Metrics = {}

    def _new_block(self, num_columns: int) -> FragmentBlock:
        return FragmentBlock(self.block.spec, self.block.fields, num_lanes=num_columns, num_steps=self.block.num_steps)

    def request(self, num_fragments: int) -> None:
        """Sets the size of the batches that are taken from now on; `num_fragments` of the settings at first."""
        if not 1 <= num_fragments <= self.capacity:
            raise SettingsError(
                f"a batch of {num_fragments} fragments cannot be drawn from a store of {self.capacity}; expected 1 to "
                f"{self.capacity}. Raise rollout.capacity",
                code="E0254",
            )
        self.num_wanted = num_fragments

    @property
    def num_waiting(self) -> int:
        """Steps in the pool that were never learned from."""
        return sum(not each.num_uses for each in self.pool) * self.block.num_steps

    def admit(self, version: int) -> bool:
        self._oldest.is_taken, self.version = True, version
        block = self.block
        assert isinstance(block, FragmentBlock)
        if self.admitted_for != block.sequence:
            self.admitted_for = block.sequence
            for column in range(block.num_fragments):
                fragment = block.fragment(column)
                if fragment.session == self.session:
                    self.pool.append(fragment)
                else:
                    self.num_dropped["session"] += block.num_steps
        is_fresh = [not self._is_stale(each) for each in self.pool]
        self._drop([each for each, fresh in zip(self.pool, is_fresh, strict=True) if not fresh], "stale")
        self.pool = [each for each, fresh in zip(self.pool, is_fresh, strict=True) if fresh]
        num_over = max(0, len(self.pool) - self.capacity)
        self._drop(self.pool[:num_over], "capacity")
        del self.pool[:num_over]
        return len(self.pool) >= self.num_wanted

    def _is_stale(self, fragment: Fragment) -> bool:
        most = self.settings.max_staleness
        return most > 0 and self.version - fragment.version > most

    def _drop(self, fragments: list[Fragment], reason: str) -> None:
        """Counts fragments that are lost; those that were learned from are not."""
        self.num_dropped[reason] += sum(not each.num_uses for each in fragments) * self.block.num_steps

    def batch_of(self, rollout: Rollout) -> Batch:
        """Returns the batch that is drawn after a block was taken in; the same one if it is asked for again."""
        if self.drawn_for != rollout.sequence:
            self._draw(rollout.sequence)
        batch = Batch(self.drawn)
        batch.num_new, batch.num_episodes = self.num_new, self.num_episodes
        batch.metrics = dict(self.batch_metrics)
        return batch

    def _draw(self, number: int) -> None:
        """Draws the batch of this number, and counts its uses."""
        assert len(self.pool) >= self.num_wanted, "a batch is drawn after `admit` has said that there are enough"
        places = self.rng.generator("draw", number).permutation(len(self.pool))[: self.num_wanted]
        chosen = [self.pool[place] for place in sorted(places)]
        if self.drawn.num_lanes != self.num_wanted:
            self.drawn = self._new_block(self.num_wanted)
        self.drawn.begin(number, 0)
        self.drawn.put(chosen)
        self.drawn_for = number
        new = [each for each in chosen if not each.num_uses]
        self.num_new, self.num_episodes = len(new) * self.block.num_steps, sum(len(each.endings) for each in new)
        for each in chosen:
            each.num_uses += 1
        self.batch_metrics = self._metrics(chosen)
        self.pool = [each for each in self.pool if each.num_uses < self.settings.max_reuse]

    def _metrics(self, chosen: list[Fragment]) -> Metrics:
        dropped = float(sum(self.num_dropped.values()))
        versions = np.array([each.fields[f.POLICY_VERSION][:-1] for each in chosen])
        return {
            "fragments/waiting": float(self.num_waiting),
            "fragments/dropped": dropped,
            **{f"fragments/dropped_{reason}": float(count) for reason, count in self.num_dropped.items()},
            "rollout/dropped": dropped - self.batch_metrics.get("fragments/dropped", 0.0),
            "rollout/staleness": float(self.version - versions[:, 0].min()),
            "rollout/version_lag": float(self.version - versions.mean()),
            "rollout/reuse": float(np.mean([each.num_uses for each in chosen])),
        }

    def state_dict(self) -> State:
        waiting = self._new_block(max(1, len(self.pool)))
        waiting.put(self.pool)
        is_taken = any(shelf.is_taken and not shelf.is_spent for shelf in self.shelves)
        return {
            **super().state_dict(),
            "pool": waiting.state_dict(),
            "num_uses": [each.num_uses for each in self.pool],
            "num_wanted": self.num_wanted,
            "drawn": self.drawn.state_dict() if is_taken and self.drawn_for == self.admitted_for else None,
            "numbers": [self.session, self.version, self.admitted_for, self.drawn_for],
            "new": [self.num_new, self.num_episodes],
            "dropped": dict(self.num_dropped),
            "metrics": dict(self.batch_metrics),
        }

    def load_state_dict(self, state: State) -> None:
        """Restores pool and blocks as part of a new session: fragments that are collected for the last one are not."""
        super().load_state_dict(state)
        uses = [require_count("num_uses", each, self.settings.max_reuse) for each in state["num_uses"]]
        self.request(require_count("num_wanted", state["num_wanted"]))
        waiting = self._new_block(max(1, len(uses)))
        waiting.load_state_dict(state["pool"])
        self.pool = [waiting.fragment(column) for column in range(len(uses))]
        numbers = [require_count("numbers", each) for each in state["numbers"]]
        session, self.version, self.admitted_for, self.drawn_for = numbers
        self.session = session + 1
        for fragment, num_uses in zip(self.pool, uses, strict=True):
            fragment.num_uses = num_uses
            fragment.fields[f.SESSION][...] = self.session
        for shelf in self.shelves:
            shelf.block.arrays[f.SESSION][...] = self.session
        self.drawn = self._new_block(self.num_wanted)
        if state["drawn"] is not None:
            self.drawn.load_state_dict(state["drawn"])
        self.num_new, self.num_episodes = (require_count("new", each) for each in state["new"])
        self.num_dropped = {reason: require_count(reason, state["dropped"][reason]) for reason in REASONS}
        self.batch_metrics = {str(name): float(value) for name, value in state["metrics"].items()}

    def begin_anew(self, state: State, *, is_learned: bool = False) -> None:
        """Goes on counting after a store that had other lanes, or after several; what they held is dropped."""
        for reason in REASONS:
            self.num_dropped[reason] += require_count(reason, state["dropped"][reason])
        self.batch_metrics["fragments/dropped"] = float(sum(self.num_dropped.values()))
        # Fragments may have had another length.
        num_steps = len(state["pool"]["fields"][f.FRAGMENT]) - 1
        num_lost = sum(not uses for uses in state["num_uses"])
        for saved in state["blocks"].values():
            if saved["block"] is not None and not saved["is_taken"]:
                num_lost += int(np.count_nonzero(np.asarray(saved["block"]["fields"][f.FRAGMENT])[0]))
        num_drawn = 0 if is_learned or state["drawn"] is None else require_count("new", state["new"][0])
        self.num_dropped["session"] += num_lost * num_steps + num_drawn
