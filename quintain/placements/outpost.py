"""Where a collector is, as its learner sees it; one that does nothing though it was told to is given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from quintain.errors import QuintainError
from quintain.placements.commands import Answer, Command
from quintain.rollouts.sync_collector import never
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.typing import TrainingEnv


class Outpost(Protocol):
    """Where a collector is: takes commands in, and gives answers out in the same order."""

    @property
    def env(self) -> TrainingEnv:
        """The lanes, or what stands for them here."""

    @property
    def supervisors(self) -> Sequence[Supervisor]: ...
    def send(self, command: Command) -> None: ...
    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        """Returns the next answer, or None if there is none in time; raises what ended the collector.

        An actor that works only while it is waited for asks `should_stop` after every step.
        """

    def interrupt(self, is_wanted: bool) -> None:
        """Lets the collector stop after its current step and do nothing further in the order of commands."""

    @property
    def pulse(self) -> int:
        """A number that changes while the collector does something."""

    def give_up(self, seconds: float) -> QuintainError:
        """Leaves or ends a collector that did nothing for so long; returns the error to raise, with its traceback."""

    def close(self) -> None: ...


class WatchedOutpost:
    """Stands between a learner and an outpost, and gives it up when its pulse has stood still for too long.

    Only time that the learner waited is counted, so a machine that was suspended, or a long update, is held against
    nobody.
    """

    def __init__(self, outpost: Outpost, patience_seconds: float) -> None:
        self.outpost = outpost
        self.patience_seconds = patience_seconds
        self.pulse = outpost.pulse
        self.silent_seconds = 0.0

    def send(self, command: Command) -> None:
        self.silent_seconds = 0.0
        self.outpost.send(command)

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        """Returns the next answer, or None; raises what ended the collector, or that it does nothing."""
        answer = self.outpost.receive(seconds, should_stop)
        pulse = self.outpost.pulse
        if answer is not None or pulse != self.pulse:
            self.pulse, self.silent_seconds = pulse, 0.0
            return answer
        self.silent_seconds += seconds
        if self.silent_seconds > self.patience_seconds:
            raise self.outpost.give_up(self.patience_seconds)
        return None

    def interrupt(self, is_wanted: bool) -> None:
        self.outpost.interrupt(is_wanted)

    def close(self) -> None:
        self.outpost.close()

    @property
    def env(self) -> TrainingEnv:
        return self.outpost.env

    @property
    def supervisors(self) -> Sequence[Supervisor]:
        return self.outpost.supervisors
