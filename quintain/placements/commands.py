"""Commands from a source to an actor, and the answers.

The order is fixed when a command is sent, not when it is executed. That makes asynchronous runs reproducible: a block
is always filled with the version, and after the changes, that were ordered before it.

fill       takes blocks (`lend`), then steps the environment until a block of any behaviour is full retire     lets a
behaviour continue to act with its last version; its steps are discarded others     methods of the actor, such as
`set_env_parameters`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quintain.envs.hosts.faults import FaultNews

FILL = "fill"
RETIRE = "retire"
IN_ORDER = frozenset({FILL, RETIRE, "set_env_parameters", "end_episode", "trigger"})
"""Commands that change the course of the environment and so keep their place in the order; others need an idle actor.
"""


@dataclass
class Lend:
    """A block to fill: the index of the block and of its weights within a behaviour, and their version."""

    behavior: str
    block: int
    version: int


@dataclass
class Command:
    """A command: fill blocks, or call a method of the actor."""

    do: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Filled:
    """A full block: the version that acted, and metrics of the block."""

    version: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Report:
    """Results of one `fill`, except the data in the blocks."""

    filled: dict[str, Filled] = field(default_factory=dict)
    """Blocks that became full, by behaviour; several if they became full at the same step."""
    returns: dict[str, list[float]] = field(default_factory=dict)
    """Returns of completed episodes, in order, by behaviour."""
    lengths: dict[str, list[int]] = field(default_factory=dict)

    def add_episodes(self, behavior: str, returns: list[float], lengths: list[int]) -> None:
        self.returns.setdefault(behavior, []).extend(returns)
        self.lengths.setdefault(behavior, []).extend(lengths)

    def extend(self, more: Report) -> None:
        """Appends the report of a later part of the same `fill`."""
        self.filled |= more.filled
        for behavior, returns in more.returns.items():
            self.add_episodes(behavior, returns, more.lengths[behavior])

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Report:
        filled = {
            str(name): Filled(int(each["version"]), _numbers(each["metrics"])) for name, each in saved["filled"].items()
        }
        returns = {str(name): [float(x) for x in some] for name, some in saved["returns"].items()}
        return cls(filled, returns, {str(name): [int(x) for x in some] for name, some in saved["lengths"].items()})


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in metrics.items()}


@dataclass
class Answer:
    """An actor's reply to a command, whether it was done or interrupted."""

    is_done: bool
    report: Report | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    faults: FaultNews = field(default_factory=FaultNews)
    exactness: str = "exact"
    value: Any = None
    """The return value of a method."""
