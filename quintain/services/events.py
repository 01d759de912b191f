"""Events: a *when* and a *what*. They are called between stages only, so they never see half-done state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from quintain.progress import Progress
from quintain.typing import State, Stateful

CYCLE_END = "cycle_end"
"""The point after the last stage, when all counters have moved."""


class When(Protocol):
    """Says whether an event is due at a point of the cycle; has no state of its own."""

    def is_due(self, point: str, progress: Progress) -> bool: ...


@dataclass(frozen=True)
class Every:
    """Is due when a cycle passes a multiple of so many steps, or every so many updates, and at the end if wanted."""

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
    """Is due after every run of one stage."""

    stage: str

    def is_due(self, point: str, progress: Progress) -> bool:
        return point == f"after_{self.stage}"


@dataclass(frozen=True)
class On:
    """Is due when someone calls `EventManager.fire` with this name."""

    trigger: str

    def is_due(self, point: str, progress: Progress) -> bool:
        return point == self.trigger


class EventManager:
    """Calls events in the order in which they were added.

    An event that returns False was interrupted: the round at the end of a cycle stops there, and the next one
    continues with that same event, so that a stop in the middle of a long evaluation neither skips nor repeats
    anything. At other points the trainer does not wait, so the rest of the round is called all the same.
    """

    def __init__(self) -> None:
        self.events: list[tuple[When, Any]] = []
        self.next_event = 0

    def add(self, when: When, function: Callable[..., object], **parameters: Any) -> None:
        self.events.append((when, partial(function, **parameters) if parameters else function))

    def fire(self, point: str, trainer: Any) -> bool:
        """Calls what is due; returns False if an event was interrupted."""
        if point == CYCLE_END:
            return self._end_cycle(trainer)
        answers = [function(trainer) for when, function in self.events if when.is_due(point, trainer.progress)]
        return not any(answer is False for answer in answers)

    def _end_cycle(self, trainer: Any) -> bool:
        for position in range(self.next_event, len(self.events)):
            when, function = self.events[position]
            if when.is_due(CYCLE_END, trainer.progress) and function(trainer) is False:
                self.next_event = position
                return False
        self.next_event = 0
        return True

    def close(self) -> None:
        """Frees what events hold outside of memory."""
        for _, event in self.events:
            if hasattr(event, "close"):
                event.close()

    def state_dict(self) -> State:
        """Saves the events that remember something, by their place among these."""
        memories = {str(i): event.state_dict() for i, event in enumerate(self._remembering)}
        return {"next_event": self.next_event, "memories": memories}

    def load_state_dict(self, state: State) -> None:
        self.next_event = state["next_event"]
        for i, event in enumerate(self._remembering):
            event.load_state_dict(state["memories"][str(i)])

    @property
    def _remembering(self) -> list[Stateful]:
        # Not counting the others: an evaluation more or less must change neither the digest nor who gets which memory.
        return [event for _, event in self.events if isinstance(event, Stateful)]
