"""Who runs what: a library, the way in which it does a workload, and the threads it may use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import peers
from peers.quintain import BESIDE
from workloads import Workload

LOCKSTEP = "in lockstep"
ONE_BEHIND = "one version behind"


@dataclass(frozen=True)
class Contestant:
    """One line of a workload's table."""

    peer: str
    entry: str
    threads: int

    @property
    def is_behind(self) -> bool:
        """Whether it acts with weights that are one version old, while newer ones are learned."""
        return self.peer == peers.OURS and self.entry.partition("+")[2] in BESIDE

    @property
    def label(self) -> str:
        """What the report calls it."""
        name = f"{self.peer} {ONE_BEHIND}" if self.is_behind else self.peer
        return f"{name} ({self.entry}, {self.threads} thread{'s' if self.threads > 1 else ''})"


def contestants_of(work: Workload, names: Collection[str]) -> list[Contestant]:
    """Returns everybody among these peers who can do a workload."""
    return [
        Contestant(name, entry, threads)
        for name in names
        if work.peers is None or name in work.peers
        for entry in module_of(name).entries(work)
        for threads in work.threads
    ]


def module_of(name: str) -> Any:
    """Returns the module that does workloads with a library."""
    assert name in peers.NAMES, name
    return import_module(f"peers.{name}")
