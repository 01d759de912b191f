"""Statistics by ML-Agents' names: averaged, summed or the most recent, written to pluggable writers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

import numpy as np


class StatsAggregationMethod(Enum):
    """How the values of one summary are aggregated."""

    AVERAGE = 0
    MOST_RECENT = 1
    SUM = 2
    HISTOGRAM = 3


class StatsSummary(NamedTuple):
    """The values of one statistic since the last summary."""

    full_dist: tuple[float, ...]
    aggregation_method: StatsAggregationMethod

    @property
    def mean(self) -> float:
        return float(np.mean(self.full_dist)) if self.full_dist else float("nan")

    @property
    def std(self) -> float:
        return float(np.std(self.full_dist)) if self.full_dist else float("nan")

    @property
    def num(self) -> int:
        return len(self.full_dist)

    @property
    def sum(self) -> float:
        return float(np.sum(self.full_dist))

    @property
    def aggregated_value(self) -> float:
        if self.aggregation_method is StatsAggregationMethod.SUM:
            return self.sum
        if self.aggregation_method is StatsAggregationMethod.MOST_RECENT:
            return self.full_dist[-1]
        return self.mean


class StatsWriter(ABC):
    """Receives summaries; derive from it to send them somewhere else."""

    @abstractmethod
    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        """Receives the summary of one behaviour at a step."""


class StatsReporter:
    """Collects the statistics of one behaviour; nothing is global to the process."""

    def __init__(self, category: str, forward: Callable[[str, float], None] | None = None) -> None:
        """Makes a reporter; `forward` gets every value too, for the rows of the run."""
        self.category = category
        self.writers: list[StatsWriter] = []
        self._forward = forward
        self._values: dict[str, list[float]] = {}
        self._methods: dict[str, StatsAggregationMethod] = {}

    def add_writer(self, writer: StatsWriter) -> None:
        self.writers.append(writer)

    def add_stat(
        self, key: str, value: float, aggregation: StatsAggregationMethod = StatsAggregationMethod.AVERAGE
    ) -> None:
        """Adds a value to this summary."""
        self._values.setdefault(key, []).append(float(value))
        self._methods[key] = aggregation
        if self._forward is not None:
            self._forward(key, float(value))

    def set_stat(self, key: str, value: float) -> None:
        """Sets the value of this summary, replacing earlier ones."""
        self._values[key] = [float(value)]
        self._methods[key] = StatsAggregationMethod.MOST_RECENT
        if self._forward is not None:
            self._forward(key, float(value))

    def get_stats_summaries(self, key: str) -> StatsSummary:
        return StatsSummary(tuple(self._values.get(key, ())), self._methods.get(key, StatsAggregationMethod.AVERAGE))

    def write_stats(self, step: int) -> None:
        """Passes the summary to the writers and begins the next one."""
        summaries = {key: self.get_stats_summaries(key) for key in self._values}
        for writer in self.writers:
            writer.write_stats(self.category, summaries, step)
        self._values.clear()
