"""Events are callbacks with a condition. They are called between stages only, so they never see an inconsistent state.

Order: `startup` once before the first stage of a run, then after every stage the events that are due there, then at the
end of the cycle the rest; always in the order in which events were added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from quintain.core.progress import Progress
from quintain.core.state import KeepsState, require_count
from quintain.errors import EventError, SettingsError
from quintain.services.user_code import named_failure
from quintain.settings.base import PartSettings
from quintain.typing import Keyword, State, Stateful

CYCLE_END = "cycle_end"
"""The point after the last stage, when all counters are updated."""
STARTUP = "startup"
"""The point before the first stage of a run; a resumed run does not pass it again."""


class When(Protocol):
    """Condition of an event: whether it is due at a point of the cycle. Stateless."""

    def is_due(self, point: str, progress: Progress) -> bool: ...


@dataclass(frozen=True)
class Every:
    """Due when a cycle passes a multiple of so many steps, or every so many updates, and optionally at the end."""

    env_steps: int | None = None
    updates: int | None = None
    at_end: bool = False

    def is_due(self, point: str, progress: Progress) -> bool:
        if point != CYCLE_END:
            return False
        return (
            (self.env_steps is not None and progress.crossed(self.env_steps))
            or (self.updates is not None and progress.updates % self.updates == 0)
            or (self.at_end and progress.is_budget_spent)
        )


@dataclass(frozen=True)
class After:
    """Due after every execution of one stage."""

    stage: str

    def is_due(self, point: str, progress: Progress) -> bool:
        return point == f"after_{self.stage}"


@dataclass(frozen=True)
class On:
    """Due when `EventManager.fire` is called with this name."""

    trigger: str

    def is_due(self, point: str, progress: Progress) -> bool:
        return point == self.trigger


class Fires(Protocol):
    """The interface of the trainer that callbacks receive; they may need more."""

    @property
    def stages(self) -> Collection[str]: ...
    @property
    def progress(self) -> Progress: ...


@dataclass(frozen=True)
class ScheduledEvent:
    """One named event."""

    name: str
    when: When
    function: Callable[..., object]


class Firings(KeepsState):
    """Counts the calls of each event; a record outside the digest."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def load_state_dict(self, state: State) -> None:
        for name, count in state["counts"].items():
            require_count(f"firings.{name}", count)
        super().load_state_dict(state)

    def add(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


class EventManager:
    """Calls events (callbacks) in the order in which they were added.

    An event that returns False was interrupted: the round at the end of a cycle stops there, and the next one continues
    with the same event, so that a stop within a long evaluation neither skips nor repeats an event. At other points the
    trainer does not wait, and the rest of the round is called all the same.
    """

    def __init__(self) -> None:
        self.entries: list[ScheduledEvent] = []
        self.firings = Firings()
        self.next_event = 0
        self.has_started = False

    def add(self, when: When, function: Callable[..., object], /, **parameters: Keyword) -> str:
        """Adds an event and returns its name: that of its function or class."""
        name = _name_of(function)
        taken = [entry.name for entry in self.entries]
        number = 1 + sum(each == name or each.startswith(f"{name}-") for each in taken)
        name = name if number == 1 else f"{name}-{number}"
        self.entries.append(ScheduledEvent(name, when, partial(function, **parameters) if parameters else function))
        return name

    def start(self, trainer: Fires) -> None:
        """Fires `startup` when the run begins; not in a resumed run."""
        require_stages(self.entries, trainer.stages)
        if not self.has_started:
            self.has_started = True
            self.fire(STARTUP, trainer)

    def fire(self, point: str, trainer: Fires) -> bool:
        """Calls the events that are due; returns False if one was interrupted."""
        if point == CYCLE_END:
            return self._end_cycle(trainer)
        due = [entry for entry in self.entries if entry.when.is_due(point, trainer.progress)]
        answers = [self._call(entry, trainer) for entry in due]
        return not any(answer is False for answer in answers)

    def never_fired(self) -> list[str]:
        """Returns the names of the events that were never called, in order."""
        return [entry.name for entry in self.entries if entry.name not in self.firings.counts]

    def _end_cycle(self, trainer: Fires) -> bool:
        for position in range(self.next_event, len(self.entries)):
            entry = self.entries[position]
            if entry.when.is_due(CYCLE_END, trainer.progress) and self._call(entry, trainer) is False:
                self.next_event = position
                return False
        self.next_event = 0
        return True

    def close(self) -> None:
        """Closes events that hold resources."""
        for entry in self.entries:
            if hasattr(entry.function, "close"):
                entry.function.close()

    def _call(self, entry: ScheduledEvent, trainer: Fires) -> object:
        with named_failure(f"event {entry.name} failed", EventError, "E0110"):
            answer: object = entry.function(trainer)
        if answer is not False:
            self.firings.add(entry.name)
        return answer

    def state_dict(self) -> State:
        """Returns the states of stateful events, by index among these."""
        memories = {str(i): event.state_dict() for i, event in enumerate(self._remembering)}
        return {"next_event": self.next_event, "has_started": self.has_started, "memories": memories}

    def load_state_dict(self, state: State) -> None:
        self.next_event = require_count("next_event", state["next_event"], len(self.entries))
        self.has_started = bool(state["has_started"])
        for i, event in enumerate(self._remembering):
            event.load_state_dict(state["memories"][str(i)])

    @property
    def _remembering(self) -> list[Stateful]:
        # Not counting the others: an evaluation more or less must change neither the digest nor who gets which memory.
        functions: list[object] = [entry.function for entry in self.entries]
        return [each for each in functions if isinstance(each, Stateful)]


def require_stages(entries: Collection[ScheduledEvent], stages: Collection[str]) -> None:
    """Refuses events that wait for a stage that this trainer does not have."""
    for entry in entries:
        if isinstance(entry.when, After) and entry.when.stage not in stages:
            raise SettingsError(
                f"event {entry.name} can never happen: it waits for stage {entry.when.stage!r}, and this trainer has "
                f"{', '.join(stages)}",
                code="E0214",
            )


def _name_of(function: Callable[..., object]) -> str:
    settings = getattr(function, "settings", None)
    kind = settings.type if isinstance(settings, PartSettings) else None
    chosen = getattr(function, "name", None) or kind or getattr(function, "__name__", None)
    return str(chosen or type(function).__name__)
