"""Readers: threads of a learner that bring what rollout actors have finished to its node, while it learns.

Without readers a result crosses the network when the learner asks for it. Readers change when it does, and nothing
else: the learner takes the same results in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from quintain.placements.ray import api
from quintain.placements.ray.collector import RayCollector

LOOK_SECONDS = 0.05
"""Interval at which readers look for new commands, and for room."""


class Readers:
    """A number of threads that share the collectors."""

    def __init__(self, num_readers: int, collectors: Sequence[RayCollector], max_brought: int) -> None:
        """Starts the threads; `max_brought` blocks or fragments wait for the learner, of all collectors together."""
        self.collectors = collectors
        self.max_brought = max_brought
        self._is_over = threading.Event()
        shares = [collectors[first::num_readers] for first in range(min(num_readers, len(collectors)))]
        self._threads = [threading.Thread(target=self._read, args=(share,), daemon=True) for share in shares]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Lets the threads end, without waiting for them."""
        self._is_over.set()

    def close(self) -> None:
        self.stop()
        for thread in self._threads:
            thread.join(timeout=api.CALL_SECONDS)

    @property
    def has_room(self) -> bool:
        return sum(each.num_brought for each in self.collectors) < self.max_brought

    def _read(self, share: Sequence[RayCollector]) -> None:
        while not self._is_over.is_set():
            unread = [(each, reference) for each in share if (reference := each.unread()) is not None]
            if not unread or not self.has_room:
                self._is_over.wait(LOOK_SECONDS)
                continue
            ready: list[api.Reference] = []
            # The learner hears of a cluster that is gone, and says so.
            with suppress(api.RayFailure):
                ready = api.ready_of([reference for _, reference in unread], LOOK_SECONDS)
            for collector, reference in unread:
                if self.has_room and any(reference is each for each in ready):
                    collector.bring(reference)
