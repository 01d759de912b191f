"""What a learner tells a collector to do, one thing after the other, and what it hears back.

The order is fixed when a command is given, not when it is carried out. That makes runs repeatable in which both halves
work at the same time: a block is always filled with the version, and after the changes, that were ordered before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quintain.envs.hosts.faults import FaultNews

FILL = "fill"
IN_ORDER = frozenset({FILL, "set_env_parameters", "end_episode", "trigger"})
"""What changes how lanes go on, so that it has its place in the order; anything else is asked of an idle collector."""


@dataclass
class Command:
    """One thing to do: fill a block, or a method of the actor to call."""

    do: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    """What happened while a block was filled, beside the numbers in it."""

    version: int = 0
    """The version of the policy that acted."""
    returns: list[float] = field(default_factory=list)
    """Of the episodes that ended, in order."""
    lengths: list[int] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def extend(self, more: Report) -> None:
        """Adds what happened in another part of the same block."""
        self.version = more.version
        self.returns += more.returns
        self.lengths += more.lengths
        self.metrics |= more.metrics


@dataclass
class Answer:
    """What a collector says when it is done with a command, or was asked to stop before."""

    is_done: bool
    report: Report | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    faults: FaultNews = field(default_factory=FaultNews)
    exactness: str = "exact"
    value: Any = None
    """What a method returned."""
