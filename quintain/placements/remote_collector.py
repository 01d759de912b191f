"""A collector in another thread or process, as its learner sees it, with a timeout for collectors that hang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from quintain.errors import QuintainError
from quintain.placements.commands import Answer, Command
from quintain.rollouts.sync_collector import never
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.typing import TrainingEnv


class RemoteCollector(Protocol):
    """A collector that takes commands and returns answers in the same order."""

    @property
    def env(self) -> TrainingEnv:
        """The environment, or its stand-in in this process."""

    @property
    def supervisors(self) -> Sequence[Supervisor]: ...
    def send(self, command: Command) -> None: ...
    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        """Returns the next answer, or None on timeout; raises the error that ended the collector.

        An inline actor works only while it is waited for, and calls `should_stop` after every step.
        """

    def interrupt(self, is_wanted: bool) -> None:
        """Requests that the collector stop after its current step and execute no further commands."""

    @property
    def pulse(self) -> int:
        """A counter that changes while the collector makes progress."""

    def give_up(self, seconds: float) -> QuintainError:
        """Abandons or kills a collector without progress for so long; returns the error, with its traceback."""

    def close(self) -> None: ...


class WatchedCollector:
    """Gives a collector up when its pulse has not changed for too long.

    Only time that the learner waited counts: a suspended machine or a long update is no failure of the collector.
    """

    def __init__(self, collector: RemoteCollector, patience_seconds: float) -> None:
        self.collector = collector
        self.patience_seconds = patience_seconds
        self.pulse = collector.pulse
        self.silent_seconds = 0.0

    def send(self, command: Command) -> None:
        self.silent_seconds = 0.0
        self.collector.send(command)

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        """Returns the next answer, or None; raises the error that ended the collector, or a timeout."""
        answer = self.collector.receive(seconds, should_stop)
        pulse = self.collector.pulse
        if answer is not None or pulse != self.pulse:
            self.pulse, self.silent_seconds = pulse, 0.0
            return answer
        self.silent_seconds += seconds
        if self.silent_seconds > self.patience_seconds:
            raise self.collector.give_up(self.patience_seconds)
        return None

    def interrupt(self, is_wanted: bool) -> None:
        self.collector.interrupt(is_wanted)

    def close(self) -> None:
        self.collector.close()

    @property
    def env(self) -> TrainingEnv:
        return self.collector.env

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        return self.collector.supervisors
