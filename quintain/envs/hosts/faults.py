"""Fault handling for environments that break: each fault is counted and reported, until the budget is spent.

A fault ends the episode of its lanes only; the environment is made again and the other lanes continue. This module only
decides; listeners show and store the faults.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from quintain.core.state import require_count
from quintain.errors import EnvError
from quintain.services.processes.restart_budget import Ages, RestartBudget, Spent

if TYPE_CHECKING:
    from quintain.typing import State

MAX_TRACEBACK = 8_000
_MAX_UNTOLD = 100
RAISED, DIED, HUNG = "W0501", "W0502", "W0503"
_GO_BETWEENS = ("quintain.", "gymnasium.core", "gymnasium.wrappers.")
CONTRACT_BREACHES = frozenset({"E0511", "E0515"})


@dataclass(frozen=True)
class LaneFault:
    """A fault of one lane, or of all lanes of a worker."""

    lanes: tuple[int, ...]
    call: str
    """The failed call: `create`, `reset` or `step`."""
    what: str
    """A sentence that names the environment, the call and the lane."""
    error: str
    """The cause in one line, such as `RuntimeError: no display`."""
    trace: str = ""
    """The traceback from the user's own frames on, or the stack of a process when it died."""
    code: str = "E0500"
    warning: str = RAISED
    cause: BaseException | None = field(default=None, compare=False)

    def as_error(self) -> EnvError:
        message = f"{self.what}: {self.error}" if self.error else self.what
        # What was raised in this process brings its traceback along.
        is_raised_elsewhere = self.cause is None and self.code not in CONTRACT_BREACHES
        notes = last_frames(self.trace) if is_raised_elsewhere else ()
        return EnvError(message, code=self.code, notes=notes)


Listener = Callable[[LaneFault, str], None]
"""Callback for a fault and a line for the user."""


@dataclass(frozen=True)
class FaultNews:
    """Faults that a keeper in another thread or process reported since the last time."""

    told: tuple[tuple[LaneFault, str], ...] = ()
    restarts: int = 0
    aborted: int = 0
    spent: EnvError | None = None
    fatal: LaneFault | None = None


class FaultKeeper:
    """Counts faults against a budget; without a budget the first one is an error."""

    def __init__(self, budget: RestartBudget[LaneFault] | None = None, hints: tuple[str, ...] = ()) -> None:
        self.budget = budget
        self.hints = hints
        """Notes appended to the error that ends the run."""
        self.restarts = 0
        self.aborted = 0
        self.spent: EnvError | None = None
        self.fatal: LaneFault | None = None
        """The first of the series of faults that spent the budget."""
        self._listener: Listener | None = None
        self._give_up: Callable[[str], None] | None = None
        self._untold: list[tuple[LaneFault, str]] = []

    def listen(self, listener: Listener, give_up: Callable[[str], None]) -> None:
        """Sets callbacks for all faults, earlier ones included; a spent budget then requests a stop, not an error."""
        self._listener, self._give_up = listener, give_up
        untold, self._untold = self._untold, []
        for fault, line in untold:
            listener(fault, line)

    def deafen(self) -> None:
        """Removes the callbacks: a spent budget raises again, because no listener is left to stop the run in order."""
        self._listener = self._give_up = None

    def take(self, fault: LaneFault, team: str = "", *, step: int, first_lane: int = 0, num_aborted: int = 0) -> None:
        """Counts and reports a fault at a step of its lanes; requests a stop, or raises, if the budget is spent."""
        if self.budget is None:
            raise fault.as_error() from fault.cause
        self.restarts += 1
        self.aborted += num_aborted
        numbers = [first_lane + lane for lane in fault.lanes]
        verdicts = [self.budget.fail((team, number), fault, step) for number in numbers]
        used = max(self.budget.used((team, number)) for number in numbers)
        cause = f" ({fault.error})" if fault.error else ""
        window = f"{self.budget.max_restarts} in {self.budget.window}"
        self._tell(fault, f"warning[{fault.warning}]: {fault.what}{cause}, restarted ({used} of {window})")
        for number, verdict in zip(numbers, verdicts, strict=True):
            if verdict is not None:
                self._end(f"{_owner(team)}lane {number}", verdict)

    def wait_before_restart(self, lanes: Iterable[int], team: str = "") -> None:
        """Waits before environments that failed several times in a row are restarted (backoff).

        All lanes wait, so that results do not depend on the clock.
        """
        if seconds := self.back_off_seconds(lanes, team):
            time.sleep(seconds)

    def back_off_seconds(self, lanes: Iterable[int], team: str = "") -> float:
        """Returns how long to wait before these lanes are made again."""
        return 0.0 if self.budget is None else self.budget.back_off_seconds((team, lane) for lane in lanes)

    def whole_team_is_down(self, fault: LaneFault | None, team: str = "") -> None:
        """Records the fault after which no lane works, or None if one does; too long a time ends the run."""
        if self.budget is not None and (verdict := self.budget.watch_team(team, fault)) is not None:
            self._end(f"every {_owner(team)}lane", verdict)

    def adopt(self, news: FaultNews) -> None:
        """Counts and reports the decisions of another keeper, and requests a stop, or raises, as if decided here."""
        self.restarts += news.restarts
        self.aborted += news.aborted
        for fault, line in news.told:
            self._tell(fault, line)
        if news.spent is not None:
            self._stop(news.spent, news.fatal)

    def succeeded(self, lanes: Iterable[int], team: str = "") -> None:
        """Resets the failure counts of lanes that took a step without a fault."""
        if self.budget is not None and self.budget.shaky:
            for lane in lanes:
                self.budget.succeed((team, lane))

    def counted(self, lanes: Sequence[int], team: str, step: int) -> State:
        """Returns the current failure counts of lanes, for the environment's state; empty without failures."""
        found = {} if self.budget is None else {lane: self.budget.ages((team, lane), step) for lane in lanes}
        return {str(lane): [ages.in_a_row, *ages.steps] for lane, ages in found.items() if ages is not None}

    def recount(self, lanes: Sequence[int], team: str, step: int, counted: State) -> None:
        """Restores the counts that `counted` returned, and drops later ones."""
        if self.budget is None:
            return
        for lane in lanes:
            saved = counted.get(str(lane))
            ages = None if saved is None else Ages([int(age) for age in saved[1:]], int(saved[0]))
            self.budget.restore((team, lane), ages, step)

    def state_dict(self) -> State:
        return {"restarts": self.restarts, "aborted": self.aborted}

    def load_state_dict(self, state: State) -> None:
        self.restarts = require_count("restarts", state["restarts"])
        self.aborted = require_count("aborted", state["aborted"])

    def _tell(self, fault: LaneFault, line: str) -> None:
        if self._listener is None:
            self._untold = [*self._untold, (fault, line)][:_MAX_UNTOLD]
        else:
            self._listener(fault, line)

    def _end(self, who: str, verdict: Spent[LaneFault]) -> None:
        if self.spent is not None:
            return
        first = verdict.first
        error = EnvError(f"{who} {verdict.reason}; first: {first.as_error().message}", code="E0503", notes=self.hints)
        error.__cause__ = first.cause
        self._stop(error, first)

    def _stop(self, error: EnvError, first: LaneFault | None) -> None:
        if self._give_up is None:
            raise error
        self.spent, self.fatal = error, first
        self._give_up("an environment broke too often")


def _owner(team: str) -> str:
    """Names the owner of lanes, if they are not the training's."""
    return "" if team.rstrip("/") in {"", "env"} else f"{team.split('/')[0]} "


def own_frames(error: BaseException) -> str:
    """Returns a traceback that starts at the user's code, without the frames that only pass calls on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _passes_on(trace):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    return text if len(text) <= MAX_TRACEBACK else f"{text[:200]}...\n{text[200 - MAX_TRACEBACK :]}"


def _passes_on(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).startswith(_GO_BETWEENS)


def last_frames(trace: str, count: int = 2) -> tuple[str, ...]:
    """Returns the innermost calls of a textual traceback, as notes for an error."""
    frames = [line.strip() for line in trace.splitlines() if line.strip().startswith('File "')]
    innermost_first = frames if "most recent call first" in trace else frames[::-1]
    return tuple(f"note: {frame}" for frame in innermost_first[:count])


def lanes_in_words(lanes: Sequence[int]) -> str:
    """Names lanes as a part of a sentence.

    >>> lanes_in_words([3]), lanes_in_words(range(2, 5))
    ('lane 3', 'lanes 2-4')
    """
    return f"lane {lanes[0]}" if len(lanes) == 1 else f"lanes {lanes[0]}-{lanes[-1]}"
