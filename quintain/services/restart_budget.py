"""How often something may fail before it is given up: so many times in a window, or so many times in a row."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Failure = TypeVar("Failure")
_BACK_OFF_SECONDS, _MAX_BACK_OFF_SECONDS = 0.1, 1.0


@dataclass(frozen=True)
class Spent(Generic[Failure]):
    """Says why nothing is left of a budget, and what the first failure of the series was."""

    reason: str
    first: Failure


@dataclass
class _History(Generic[Failure]):
    recent: deque[tuple[float, Failure]] = field(default_factory=deque)
    in_a_row: int = 0
    first_in_a_row: Failure | None = None


class RestartBudget(Generic[Failure]):
    """Counts failures of each member of a team apart, by a clock that cannot jump."""

    def __init__(
        self,
        *,
        max_restarts: int,
        window_seconds: float,
        max_in_a_row: int,
        max_down_seconds: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_restarts = max_restarts
        self.window_seconds = window_seconds
        self.max_in_a_row = max_in_a_row
        self.max_down_seconds = max_down_seconds
        self._clock = clock
        self._histories: dict[Hashable, _History[Failure]] = {}
        self._down: dict[Hashable, tuple[float, Failure]] = {}
        self.shaky: set[Hashable] = set()
        """Those whose last try failed."""

    def fail(self, who: Hashable, what: Failure) -> Spent[Failure] | None:
        """Takes note of a failure; returns what to say if it was one too many."""
        history = self._histories.setdefault(who, _History())
        now = self._clock()
        while history.recent and history.recent[0][0] <= now - self.window_seconds:
            history.recent.popleft()
        history.recent.append((now, what))
        if history.in_a_row == 0 or history.first_in_a_row is None:
            history.first_in_a_row = what
        history.in_a_row += 1
        self.shaky.add(who)
        if history.in_a_row >= self.max_in_a_row:
            return Spent(f"failed {history.in_a_row} times in a row", history.first_in_a_row)
        if len(history.recent) >= self.max_restarts:
            times = f"failed {len(history.recent)} times in {self.window_seconds:g} s"
            return Spent(times, history.recent[0][1])
        return None

    def succeed(self, who: Hashable) -> None:
        """Ends a series of failures."""
        if who in self.shaky:
            self.shaky.discard(who)
            self._histories[who].in_a_row = 0

    def watch_team(self, team: Hashable, failure: Failure | None) -> Spent[Failure] | None:
        """Takes note of the failure that left a whole team down, or of None as soon as one of it works again."""
        if failure is None:
            self._down.pop(team, None)
            return None
        since, first = self._down.setdefault(team, (self._clock(), failure))
        if self._clock() - since < self.max_down_seconds:
            return None
        return Spent(f"did not work for {self._clock() - since:.0f} s", first)

    def back_off_seconds(self, members: Iterable[Hashable]) -> float:
        """Returns how long to wait before these are tried again: not at all at first, then longer and longer."""
        in_a_row = max((self._histories[who].in_a_row for who in members if who in self._histories), default=0)
        return min(_MAX_BACK_OFF_SECONDS, _BACK_OFF_SECONDS * 2.0 ** (in_a_row - 2)) if in_a_row > 1 else 0.0

    def used(self, who: Hashable) -> int:
        """Returns how many failures in the window count at the moment."""
        return len(self._histories[who].recent) if who in self._histories else 0
