"""Collects metrics between two reports and passes them to the writers as one row.

Metrics are named `rollout/*`, `train/*`, `eval/*`, and `time/*` for all that depends on the wall clock. A value that is
not finite has no mean and cannot be stored in JSON or a checkpoint, so it is left out here; the part that computed it
reports the fault.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from quintain.core.state import MOST_COUNTED, require_count
from quintain.errors import CheckpointIncompatible
from quintain.services.reporting.writers import Writer
from quintain.typing import Metrics, State

if TYPE_CHECKING:
    from quintain.typing import Array

TIMED_SHARES: Mapping[str, tuple[str, ...]] = {
    "time/env_fraction": ("env",),
    "time/act_fraction": ("act",),
    "time/learn_fraction": ("estimate", "update"),
}
"""The timers of each share of the wall clock; the remainder is `time/other_fraction`."""


TOTALS = "fragments/"
"""Beginning of the names of counts since the run began: a row has the last one in place of a mean."""
COUNTED = ("rollout/dropped", "rollout/clamped_steps", TOTALS)
"""Beginnings of the names of metrics that are sums over lanes."""
LARGEST = ("rollout/staleness",)
"""Metrics that are the largest of all lanes."""


def joined_metrics(metrics: Sequence[Metrics]) -> Metrics:
    """Returns the metrics of equal groups of lanes together: sums of counts, and means of means.

    >>> joined_metrics([{"rewards/a": 1.0, "rollout/clamped_steps": 2.0}, {"rewards/a": 2.0}])
    {'rewards/a': 1.5, 'rollout/clamped_steps': 2.0}
    """
    names = dict.fromkeys(name for each in metrics for name in each)
    found = {name: [each[name] for each in metrics if name in each] for name in names}
    return {
        name: max(some) if name in LARGEST else sum(some) / (1 if name.startswith(COUNTED) else len(some))
        for name, some in found.items()
    }


class StatsReporter:
    """Averages added values, keeps the last of set values, and writes both as one row per report."""

    def __init__(self, writer: Writer, *, start_step: int = 0, clock: Callable[[], float] = time.perf_counter) -> None:
        self._writer = writer
        self._clock = clock
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._last: dict[str, float] = {}
        self._timed_seconds: dict[str, float] = {}
        self._total_times: dict[str, tuple[float, int]] = {}
        self._last_step = start_step
        self._last_updates = 0
        self._interval_start = clock()
        self._run_start = self._interval_start

    def add_stat(self, name: str, value: float) -> None:
        """Adds a value to the mean of this interval."""
        value = float(value)
        if math.isfinite(value):
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def add_all(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            (self.set_stat if name.startswith(TOTALS) else self.add_stat)(name, value)

    def set_stat(self, name: str, value: float) -> None:
        """Sets a value of this interval's row; a later call replaces it."""
        value = float(value)
        if math.isfinite(value):
            self._last[name] = value
        else:
            self._last.pop(name, None)

    def set_all(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.set_stat(name, value)

    def add_time(self, name: str, seconds: float) -> None:
        """Adds seconds to a timer; those named in `TIMED_SHARES` are shown."""
        self._timed_seconds[name] = self._timed_seconds.get(name, 0.0) + seconds
        total, count = self._total_times.get(name, (0.0, 0))
        self._total_times[name] = (total + seconds, count + 1)

    @property
    def total_times(self) -> dict[str, tuple[float, int]]:
        """The seconds of each timer since this process started, and the number of calls."""
        return dict(self._total_times)

    @contextmanager
    def timer(self, name: str) -> Iterator[None]:
        start = self._clock()
        try:
            yield
        finally:
            self.add_time(name, self._clock() - start)

    @property
    def total_seconds(self) -> float:
        """The seconds that this run has taken, over all its processes."""
        return self._clock() - self._run_start

    @property
    def last_step(self) -> int:
        """The step of the newest row."""
        return self._last_step

    @property
    def last_updates(self) -> int:
        """The updates that were done at the newest row."""
        return self._last_updates

    def under(self, prefix: str) -> StatsReporter:
        """Returns this reporter, or one that writes to the same row with a prefix on names."""
        return ScopedStats(self, prefix) if prefix else self

    def write_stats(self, step: int, updates: int = 0) -> Metrics:
        """Writes the row of this interval, returns it, and starts the next interval."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        row = {**means, **self._last, **self._time_stats(step)}
        row = {name: row[name] for name in sorted(row)}
        self._writer.write(step, row)
        for interval in (self._sums, self._counts, self._last, self._timed_seconds):
            interval.clear()
        self._last_step = step
        self._last_updates = updates
        return row

    def _time_stats(self, step: int) -> Metrics:
        now = self._clock()
        seconds = now - self._interval_start
        self._interval_start = now
        row = {"time/total_seconds": now - self._run_start}
        if seconds <= 0:
            return row
        row["time/fps"] = (step - self._last_step) / seconds
        for name, timers in TIMED_SHARES.items():
            row[name] = sum(self._timed_seconds.get(timer, 0.0) for timer in timers) / seconds
        row["time/other_fraction"] = max(0.0, 1.0 - sum(row[name] for name in TIMED_SHARES))
        return row

    def state_dict(self) -> State:
        return {
            "sums": dict(self._sums),
            "counts": dict(self._counts),
            "last": dict(self._last),
            "last_step": self._last_step,
            "last_updates": self._last_updates,
            "total_seconds": self.total_seconds,
        }

    def load_state_dict(self, state: State) -> None:
        """Restores the partial sums; clocks restart, and the total continues."""
        self._sums = {name: float(value) for name, value in state["sums"].items()}
        self._counts = {name: int(value) for name, value in state["counts"].items()}
        self._last = {name: float(value) for name, value in state["last"].items()}
        self._timed_seconds = {}
        self._last_step = int(state["last_step"])
        # Older checkpoints have none; then rows are told apart by their steps alone.
        self._last_updates = int(state.get("last_updates", MOST_COUNTED))
        self._interval_start = self._clock()
        self._run_start = self._interval_start - float(state["total_seconds"])


class ScopedStats(StatsReporter):
    """Reports to the row of another reporter, with a prefix on names."""

    def __init__(self, whole: StatsReporter, prefix: str) -> None:
        self.whole = whole
        self.prefix = prefix
        self._clock = whole._clock

    def add_stat(self, name: str, value: float) -> None:
        self.whole.add_stat(f"{self.prefix}{name}", value)

    def set_stat(self, name: str, value: float) -> None:
        self.whole.set_stat(f"{self.prefix}{name}", value)

    def add_time(self, name: str, seconds: float) -> None:
        self.whole.add_time(name, seconds)

    @property
    def total_seconds(self) -> float:
        return self.whole.total_seconds

    @property
    def last_step(self) -> int:
        return self.whole.last_step


WINDOW_SIZE = 100
"""Number of episodes in a window."""


class EpisodeWindow:
    """The returns and lengths of the most recent episodes, in a ring."""

    def __init__(self, size: int = WINDOW_SIZE) -> None:
        self._returns = np.zeros(size, dtype=np.float64)
        self._lengths = np.zeros(size, dtype=np.int64)
        self._cursor = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, returns: ArrayLike, lengths: ArrayLike) -> None:
        """Adds completed episodes, oldest first."""
        new_returns = np.asarray(returns, dtype=np.float64).ravel()
        new_lengths = np.asarray(lengths, dtype=np.int64).ravel()
        if new_returns.shape != new_lengths.shape:
            raise ValueError(f"{new_returns.size} returns came with {new_lengths.size} lengths")
        size = self._returns.size
        kept = min(new_returns.size, size)
        start = self._cursor + new_returns.size - kept
        slots = np.arange(start, start + kept) % size
        self._returns[slots] = new_returns[new_returns.size - kept :]
        self._lengths[slots] = new_lengths[new_lengths.size - kept :]
        self._cursor = (start + kept) % size
        self._count = min(self._count + new_returns.size, size)

    @property
    def returns(self) -> deque[float]:
        """The returns, oldest first."""
        return deque(self._in_order(self._returns).tolist(), maxlen=self._returns.size)

    @property
    def lengths(self) -> deque[int]:
        """The lengths, oldest first."""
        return deque(self._in_order(self._lengths).tolist(), maxlen=self._lengths.size)

    def _in_order(self, ring: Array) -> Array:
        return ring[: self._count] if self._count < ring.size else np.roll(ring, -self._cursor)

    @property
    def mean_return(self) -> float:
        return float(self._returns[: self._count].mean()) if self._count else math.nan

    @property
    def std_return(self) -> float:
        """The population standard deviation."""
        return float(self._returns[: self._count].std()) if self._count else math.nan

    @property
    def mean_length(self) -> float:
        return float(self._lengths[: self._count].mean()) if self._count else math.nan

    def totals(self) -> list[float]:
        """Returns the number of episodes and the sums of returns, squared returns and lengths, to add up over ranks."""
        returns, lengths = self._returns[: self._count], self._lengths[: self._count]
        return [float(self._count), float(returns.sum()), float(np.square(returns).sum()), float(lengths.sum())]

    def stats(self) -> Metrics:
        """Returns the window as metrics; NaN while it is empty, which the reporter leaves out."""
        return {
            "rollout/ep_rew_mean": self.mean_return,
            "rollout/ep_rew_std": self.std_return,
            "rollout/ep_len_mean": self.mean_length,
        }

    def state_dict(self) -> State:
        return {
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "cursor": self._cursor,
            "count": self._count,
        }

    def load_state_dict(self, state: State) -> None:
        saved_size = int(np.asarray(state["returns"]).size)
        if saved_size != self._returns.size:
            raise CheckpointIncompatible(
                f"episode window in the checkpoint holds {saved_size} episodes, this run's holds "
                f"{self._returns.size}. Resume with the window size that the run began with"
            )
        self._returns[:] = state["returns"]
        self._lengths[:] = state["lengths"]
        self._cursor = require_count("cursor", state["cursor"], self._returns.size - 1)
        self._count = require_count("count", state["count"], self._returns.size)


def stats_of_totals(totals: Sequence[float]) -> Metrics:
    """Returns the metrics of several windows together, from the sum of their totals."""
    count, total_return, squares, total_length = totals
    if not count:
        return EpisodeWindow().stats()
    mean = total_return / count
    return {
        "rollout/ep_rew_mean": mean,
        "rollout/ep_rew_std": math.sqrt(max(0.0, squares / count - mean * mean)),
        "rollout/ep_len_mean": total_length / count,
    }
