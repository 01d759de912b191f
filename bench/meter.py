"""Measures a training loop from inside: how fast, with how much of the machine, and who else used it meanwhile.

A peer calls its meter's `tick(env_steps, recent_return)` once per iteration and stops when that returns True. Runs
inside every peer's interpreter, so it needs nothing but Python.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import processes
from workloads import Workload

WARM_UP_ITERATIONS = 2
NUM_PARTS = 10


@dataclass(frozen=True)
class Reading:
    """Where the clocks stood when so many steps were done."""

    seconds: float
    own_cpu_seconds: float
    machine_cpu_seconds: float
    env_steps: int


def read(env_steps: int) -> Reading:
    """Reads all clocks; children count as ours."""
    own = processes.cpu_seconds(processes.tree(os.getpid()))
    return Reading(time.perf_counter(), own, processes.machine_cpu_seconds(), env_steps)


class Meter(Protocol):
    """Is told about every finished iteration and says when enough was seen."""

    def tick(self, env_steps: int, recent_return: float | None = None) -> bool: ...
    def result(self) -> dict[str, Any]: ...


def meter_of(work: Workload, seconds: float) -> Meter:
    """Returns the meter that a workload asks for."""
    if work.meter == "goal":
        assert work.goal is not None
        return GoalMeter(work.goal, work.total_steps)
    return PartsMeter(work.total_steps) if work.meter == "parts" else RateMeter(seconds)


@dataclass
class RateMeter:
    """Measures for so many seconds after a warm-up."""

    seconds: float
    read: Callable[[int], Reading] = read
    clock: Callable[[], float] = time.perf_counter
    first: Reading | None = None
    last: Reading | None = None
    iterations: int = 0

    def tick(self, env_steps: int, recent_return: float | None = None) -> bool:
        self.iterations += 1
        if self.iterations < WARM_UP_ITERATIONS:
            return False
        if self.first is None:
            self.first = self.read(env_steps)
            return False
        if self.clock() - self.first.seconds < self.seconds:
            return False
        self.last = self.read(env_steps)
        return True

    def result(self) -> dict[str, Any]:
        assert self.first is not None
        assert self.last is not None, "the training loop ended by itself"
        return between(self.first, self.last)


@dataclass
class GoalMeter:
    """Measures from the start of the process until a mean return is reached, and until all steps are done."""

    goal: float
    total_steps: int
    read: Callable[[int], Reading] = read
    since_start: Callable[[], float] = processes.seconds_since_start
    first: Reading | None = None
    last: Reading | None = None
    reached: dict[str, Any] = field(default_factory=lambda: {"goal_seconds": None, "goal_steps": None})
    total_seconds: float = 0.0
    best: float = float("-inf")

    def tick(self, env_steps: int, recent_return: float | None = None) -> bool:
        if self.first is None:
            self.first = self.read(env_steps)
        if recent_return is not None:
            self.best = max(self.best, float(recent_return))  # a library's own kind of number cannot become JSON
            if self.reached["goal_seconds"] is None and recent_return >= self.goal:
                self.reached = {"goal_seconds": self.since_start(), "goal_steps": env_steps}
        if env_steps < self.total_steps:
            return False
        self.total_seconds = self.since_start()
        self.last = self.read(env_steps)
        return True

    def result(self) -> dict[str, Any]:
        assert self.first is not None
        assert self.last is not None, "the training loop ended by itself"
        best = None if self.best == float("-inf") else self.best
        return {
            **between(self.first, self.last),
            **self.reached,
            "total_seconds": self.total_seconds,
            "best_return": best,
        }


@dataclass
class PartsMeter:
    """Measures the rate in every tenth of a long run, to see whether it stays."""

    total_steps: int
    read: Callable[[int], Reading] = read
    readings: list[Reading] = field(default_factory=list)
    iterations: int = 0

    def tick(self, env_steps: int, recent_return: float | None = None) -> bool:
        self.iterations += 1
        if self.iterations < WARM_UP_ITERATIONS:
            return False
        if not self.readings or env_steps >= self._next_border():
            self.readings.append(self.read(env_steps))
        return env_steps >= self.total_steps

    def _next_border(self) -> float:
        begin = self.readings[0].env_steps
        return begin + len(self.readings) * (self.total_steps - begin) / NUM_PARTS

    def result(self) -> dict[str, Any]:
        parts = [between(a, b) for a, b in zip(self.readings, self.readings[1:], strict=False)]
        return {**between(self.readings[0], self.readings[-1]), "parts": [part["steps_per_second"] for part in parts]}


def between(first: Reading, last: Reading) -> dict[str, Any]:
    """Returns the rate between two readings, the cores we used and the cores that others used."""
    seconds = last.seconds - first.seconds
    own = last.own_cpu_seconds - first.own_cpu_seconds
    machine = last.machine_cpu_seconds - first.machine_cpu_seconds
    env_steps = last.env_steps - first.env_steps
    return {
        "steps_per_second": env_steps / seconds,
        "steps_per_cpu_second": env_steps / max(own, 1e-9),
        "seconds": seconds,
        "own_cores": own / seconds,
        "foreign_cores": max(0.0, (machine - own) / seconds),
    }
