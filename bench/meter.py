"""Measures steps per second between iterations of a training loop, and who else used the machine meanwhile.

Runs inside every peer's interpreter, so it needs nothing but Python.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

WARM_UP_ITERATIONS = 3


@dataclass(frozen=True)
class _Reading:
    seconds: float
    own_cpu_seconds: float
    machine_cpu_seconds: float
    env_steps: int


def _read(env_steps: int) -> _Reading:
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return _Reading(time.perf_counter(), own, _machine_cpu_seconds(), env_steps)


def _machine_cpu_seconds() -> float:
    """Returns what all processes used since boot; 0 where the system does not say."""
    try:
        with open("/proc/stat") as stat:
            user, nice, system, _idle, _wait, *interrupts = (int(x) for x in stat.readline().split()[1:8])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


@dataclass
class Meter:
    """Is told about every finished iteration and says when enough time has passed."""

    seconds: float
    read: Callable[[int], _Reading] = _read
    readings: list[_Reading] = field(default_factory=list)
    iterations: int = 0

    def tick(self, env_steps: int) -> bool:
        """Takes note that `env_steps` are done in total; returns True when the measurement is over."""
        self.iterations += 1
        if self.iterations < WARM_UP_ITERATIONS:
            return False
        reading = self.read(env_steps)
        self.readings = [*self.readings[:1], reading]
        return reading.seconds - self.readings[0].seconds >= self.seconds

    def result(self) -> dict[str, float]:
        """Returns the rate, the cores this process used and the cores that others used."""
        first, last = self.readings
        seconds = last.seconds - first.seconds
        own = last.own_cpu_seconds - first.own_cpu_seconds
        machine = last.machine_cpu_seconds - first.machine_cpu_seconds
        return {
            "steps_per_second": (last.env_steps - first.env_steps) / seconds,
            "steps_per_cpu_second": (last.env_steps - first.env_steps) / own,
            "seconds": seconds,
            "own_cores": own / seconds,
            "foreign_cores": max(0.0, (machine - own) / seconds),
        }
