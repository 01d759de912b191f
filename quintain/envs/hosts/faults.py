"""What becomes of environments that break: each fault is counted and told, until one is too many.

A fault ends the episode of its lanes and nothing else; the environment is made anew and the other lanes go on. Only the
decision is taken here. Whoever listens shows and keeps what was told.
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
    """What happened to one lane, or to all lanes of a worker."""

    lanes: tuple[int, ...]
    call: str
    """What they were in: `create`, `reset` or `step`."""
    what: str
    """A sentence that names the environment, the call and the lane."""
    error: str
    """The cause in one line, such as `RuntimeError: no display`."""
    trace: str = ""
    """The user's own frames of the traceback, or where the process was when it died."""
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
"""Receives a fault and a line for the user."""


@dataclass(frozen=True)
class FaultNews:
    """What a keeper in another thread or process has to tell since the last time."""

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
        """Notes for the error that ends the run."""
        self.restarts = 0
        self.aborted = 0
        self.spent: EnvError | None = None
        self.fatal: LaneFault | None = None
        """The first of the series of faults that spent the budget."""
        self._listener: Listener | None = None
        self._give_up: Callable[[str], None] | None = None
        self._untold: list[tuple[LaneFault, str]] = []

    def listen(self, listener: Listener, give_up: Callable[[str], None]) -> None:
        """Tells of every fault from now on, and of those before; a spent budget asks to stop instead of raising."""
        self._listener, self._give_up = listener, give_up
        untold, self._untold = self._untold, []
        for fault, line in untold:
            listener(fault, line)

    def deafen(self) -> None:
        """Goes back to raising, when nobody is there any more who could stop in an orderly way."""
        self._listener = self._give_up = None

    def take(self, fault: LaneFault, team: str = "", *, step: int, first_lane: int = 0, num_aborted: int = 0) -> None:
        """Counts a fault at a step of its lanes and tells of it; asks to stop, or raises, if it was one too many."""
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
        """Gives environments that failed several times in a row, or what they need, some time to come back.

        Everybody waits, so that the numbers do not depend on the clock.
        """
        if self.budget is not None and (seconds := self.budget.back_off_seconds((team, lane) for lane in lanes)):
            time.sleep(seconds)

    def whole_team_is_down(self, fault: LaneFault | None, team: str = "") -> None:
        """Takes note of the fault after which no lane works, or of None if one does; too long ends the run."""
        if self.budget is not None and (verdict := self.budget.watch_team(team, fault)) is not None:
            self._end(f"every {_owner(team)}lane", verdict)

    def adopt(self, news: FaultNews) -> None:
        """Counts and tells what another keeper decided, and asks to stop, or raises, as if it were decided here."""
        self.restarts += news.restarts
        self.aborted += news.aborted
        for fault, line in news.told:
            self._tell(fault, line)
        if news.spent is not None:
            self._stop(news.spent, news.fatal)

    def succeeded(self, lanes: Iterable[int], team: str = "") -> None:
        """Ends the series of failures of lanes that took a good step."""
        if self.budget is not None and self.budget.shaky:
            for lane in lanes:
                self.budget.succeed((team, lane))

    def counted(self, lanes: Sequence[int], team: str, step: int) -> State:
        """Returns the failures of lanes that still count, for the state of their environment; empty without any."""
        found = {} if self.budget is None else {lane: self.budget.ages((team, lane), step) for lane in lanes}
        return {str(lane): [ages.in_a_row, *ages.steps] for lane, ages in found.items() if ages is not None}

    def recount(self, lanes: Sequence[int], team: str, step: int, counted: State) -> None:
        """Puts back what `counted` returned, and forgets what these lanes did since."""
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
    """Says whose lanes they are, if they are not those of the training."""
    return "" if team.rstrip("/") in {"", "env"} else f"{team.split('/')[0]} "


def own_frames(error: BaseException) -> str:
    """Returns a traceback that begins with the user's code, without those who only passed the call on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _passes_on(trace):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    return text if len(text) <= MAX_TRACEBACK else f"{text[:200]}...\n{text[200 - MAX_TRACEBACK :]}"


def _passes_on(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).startswith(_GO_BETWEENS)


def last_frames(trace: str, count: int = 2) -> tuple[str, ...]:
    """Returns where a process was, as notes for an error: the innermost calls that a traceback in words names."""
    frames = [line.strip() for line in trace.splitlines() if line.strip().startswith('File "')]
    innermost_first = frames if "most recent call first" in trace else frames[::-1]
    return tuple(f"note: {frame}" for frame in innermost_first[:count])


def lanes_in_words(lanes: Sequence[int]) -> str:
    """Names lanes as a part of a sentence.

    >>> lanes_in_words([3]), lanes_in_words(range(2, 5))
    ('lane 3', 'lanes 2-4')
    """
    return f"lane {lanes[0]}" if len(lanes) == 1 else f"lanes {lanes[0]}-{lanes[-1]}"
