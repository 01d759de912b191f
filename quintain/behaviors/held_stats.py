"""A behaviour's statistics that wait while a learner's thread reports them, so that rows do not depend on its speed."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quintain.services.reporting.stats import StatsReporter
from quintain.trainers.behavior_session import SharedStats

if TYPE_CHECKING:
    from quintain.typing import State


class HeldStats(SharedStats):
    """Puts what a behaviour reports into the row of all; what one thread reports is held until it is released."""

    def __init__(self, shared: StatsReporter, prefix: str) -> None:
        super().__init__(shared, prefix)
        self._thread: int | None = None
        self._added: list[tuple[str, float]] = []
        self._set: dict[str, float] = {}
        self._seconds: list[tuple[str, float]] = []

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Holds what the thread that is inside reports; others are not concerned."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None

    @property
    def is_holding(self) -> bool:
        """Whether the thread that asks is the one inside."""
        return threading.get_ident() == self._thread

    def release(self) -> None:
        """Puts what was held into the row, in its order."""
        added, kept, seconds = self._added, self._set, self._seconds
        self.forget()
        for name, value in added:
            self.add_stat(name, value)
        self.set_all(kept)
        for name, value in seconds:
            self.add_time(name, value)

    def forget(self) -> None:
        """Drops what was held."""
        self._added, self._set, self._seconds = [], {}, []

    def add_stat(self, name: str, value: float) -> None:
        if not self.is_holding:
            super().add_stat(name, value)
        elif math.isfinite(value):
            self._added.append((name, float(value)))

    def set_stat(self, name: str, value: float) -> None:
        if not self.is_holding:
            super().set_stat(name, value)
        elif math.isfinite(value):
            self._set[name] = float(value)

    def add_time(self, name: str, seconds: float) -> None:
        if self.is_holding:
            self._seconds.append((name, seconds))
        else:
            super().add_time(name, seconds)

    def held(self) -> State:
        """Returns what is held, for a checkpoint; seconds are of this process only."""
        return {"added": [[name, value] for name, value in self._added], "set": dict(self._set)}

    def hold(self, state: State) -> None:
        """Holds what `held` returned, and nothing else."""
        self.forget()
        self._added = [(name, float(value)) for name, value in state["added"]]
        self._set = {name: float(value) for name, value in state["set"].items()}
