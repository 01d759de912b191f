"""What a source orders from an actor, one thing after the other, and what it hears back.

The order is fixed when a command is given, not when it is carried out. That makes runs repeatable in which acting and
learning happen at the same time: a block is always filled with the version, and after the changes, that were ordered
before it.

fill       takes blocks (`lend`), then steps the environment until a block of any behaviour is full
retire     lets a behaviour act on with its last version; its steps are no longer kept
others     methods of the actor, such as `set_env_parameters`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quintain.envs.hosts.faults import FaultNews

FILL = "fill"
RETIRE = "retire"
IN_ORDER = frozenset({FILL, RETIRE, "set_env_parameters", "end_episode", "trigger"})
"""Commands that change how the environment goes on, so that they have their place in the order; others are asked of an
idle actor."""


@dataclass
class Lend:
    """A block to fill: the number of the block and of its weights among those of a behaviour, and their version."""

    behavior: str
    block: int
    version: int


@dataclass
class Command:
    """One thing to do: fill blocks, or a method of the actor to call."""

    do: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Filled:
    """A block that is full: the version that acted, and metrics of the block."""

    version: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Report:
    """What happened during one `fill`, beside the numbers in the blocks."""

    filled: dict[str, Filled] = field(default_factory=dict)
    """The blocks that became full, by behaviour; several where that was at the same step."""
    returns: dict[str, list[float]] = field(default_factory=dict)
    """Of the episodes that ended, in order, by behaviour."""
    lengths: dict[str, list[int]] = field(default_factory=dict)

    def add_episodes(self, behavior: str, returns: list[float], lengths: list[int]) -> None:
        self.returns.setdefault(behavior, []).extend(returns)
        self.lengths.setdefault(behavior, []).extend(lengths)

    def extend(self, more: Report) -> None:
        """Adds what happened in a later part of the same `fill`."""
        self.filled |= more.filled
        for behavior, returns in more.returns.items():
            self.add_episodes(behavior, returns, more.lengths[behavior])

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Report:
        filled = {
            str(name): Filled(int(each["version"]), dict(each["metrics"])) for name, each in saved["filled"].items()
        }
        returns = {str(name): [float(x) for x in some] for name, some in saved["returns"].items()}
        return cls(filled, returns, {str(name): [int(x) for x in some] for name, some in saved["lengths"].items()})


@dataclass
class Answer:
    """What an actor says when it is done with a command, or was asked to stop before."""

    is_done: bool
    report: Report | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    faults: FaultNews = field(default_factory=FaultNews)
    exactness: str = "exact"
    value: Any = None
    """What a method returned."""
