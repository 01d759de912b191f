"""A budget of failures: so many within a number of steps, or so many in a row."""

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
    """Why a budget is spent, and the first failure of the series."""

    reason: str
    first: Failure


@dataclass
class _History(Generic[Failure]):
    recent: deque[tuple[float, Failure | None]] = field(default_factory=deque)
    """The step and the cause of each failure; None for one before a resume."""
    in_a_row: int = 0
    first_in_a_row: Failure | None = None


@dataclass(frozen=True)
class Ages:
    """The counted failures of one member, as saved in a checkpoint."""

    steps: list[int]
    """The age of each failure in steps."""
    in_a_row: int


class RestartBudget(Generic[Failure]):
    """Counts the failures of each member of a team, by its steps; by a monotonic clock only on request.

    The speed of a machine must not decide whether a run continues.
    """

    def __init__(
        self,
        *,
        max_restarts: int,
        window_steps: int,
        max_in_a_row: int,
        window_seconds: float | None = None,
        max_down_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_restarts = max_restarts
        self.window_steps = window_steps
        self.window_seconds = window_seconds
        self.max_in_a_row = max_in_a_row
        self.max_down_seconds = float("inf") if max_down_seconds is None else max_down_seconds
        self._clock = clock
        self._histories: dict[Hashable, _History[Failure]] = {}
        self._down: dict[Hashable, tuple[float, Failure]] = {}
        self.shaky: set[Hashable] = set()
        """Members whose last attempt failed."""

    @property
    def window(self) -> str:
        """A description of the window, for messages."""
        return f"{self.window_steps} steps" if self.window_seconds is None else f"{self.window_seconds:g} s"

    def fail(self, who: Hashable, what: Failure, step: int) -> Spent[Failure] | None:
        """Counts a failure at a step of the member; returns the reason if the budget is spent."""
        history = self._histories.setdefault(who, _History())
        now, length = (step, self.window_steps) if self.window_seconds is None else (self._clock(), self.window_seconds)
        while history.recent and history.recent[0][0] <= now - length:
            history.recent.popleft()
        history.recent.append((now, what))
        if history.in_a_row == 0 or history.first_in_a_row is None:
            history.first_in_a_row = what
        history.in_a_row += 1
        self.shaky.add(who)
        if history.in_a_row >= self.max_in_a_row:
            why = f"failed {history.in_a_row} times in a row (run.env_workers.max_failures_in_a_row)"
            return Spent(why, history.first_in_a_row)
        if len(history.recent) >= self.max_restarts:
            why = f"failed {len(history.recent)} times in {self.window} (run.env_workers.max_restarts)"
            return Spent(why, next(failure for _, failure in history.recent if failure is not None))
        return None

    def succeed(self, who: Hashable) -> None:
        """Resets the series of failures."""
        if who in self.shaky:
            self.shaky.discard(who)
            self._histories[who].in_a_row = 0

    def ages(self, who: Hashable, step: int) -> Ages | None:
        """Returns the counted failures of a member at this step, or None."""
        history = self._histories.get(who)
        if history is None or self.window_seconds is not None:
            return None
        recent = [step - int(at) for at, _ in history.recent if at > step - self.window_steps]
        return Ages(recent, history.in_a_row) if recent or history.in_a_row else None

    def restore(self, who: Hashable, ages: Ages | None, step: int) -> None:
        """Restores the saved failures of a member."""
        self._histories.pop(who, None)
        self.shaky.discard(who)
        if ages is not None:
            self._histories[who] = _History(deque((step - age, None) for age in ages.steps), ages.in_a_row)
            if ages.in_a_row:
                self.shaky.add(who)

    def watch_team(self, team: Hashable, failure: Failure | None) -> Spent[Failure] | None:
        """Records the failure that took a whole team down, or None as soon as one member works again."""
        if failure is None:
            self._down.pop(team, None)
            return None
        since, first = self._down.setdefault(team, (self._clock(), failure))
        if self._clock() - since < self.max_down_seconds:
            return None
        return Spent(f"did not work for {self._clock() - since:.0f} s (run.env_workers.max_down_seconds)", first)

    def back_off_seconds(self, members: Iterable[Hashable]) -> float:
        """Returns the backoff before these members are tried again: zero at first, then increasing."""
        in_a_row = max((self._histories[who].in_a_row for who in members if who in self._histories), default=0)
        return min(_MAX_BACK_OFF_SECONDS, _BACK_OFF_SECONDS * 2.0 ** (in_a_row - 2)) if in_a_row > 1 else 0.0

    def used(self, who: Hashable) -> int:
        """Returns the number of failures in the window."""
        return len(self._histories[who].recent) if who in self._histories else 0
