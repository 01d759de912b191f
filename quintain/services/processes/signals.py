"""SIGINT and SIGTERM: the first requests a stop with a checkpoint, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_STDERR = 2


class StopSignals:
    """Records the signal that requested a stop."""

    def __init__(self, grace_seconds: float) -> None:
        self.grace_seconds = grace_seconds
        self.received: signal.Signals | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code for the signal, as in a shell; None without one."""
        return None if self.received is None else 128 + self.received

    @contextmanager
    def watching(
        self, stop: Callable[[str], None], last_checkpoint: Callable[[], str], stops_after: str = ""
    ) -> Iterator[None]:
        """Calls `stop` with the signal's name when one arrives; does nothing outside the main thread.

        If the stop must wait for something long, `stops_after` names it, and the user is told at once.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # Started beforehand: a thread made inside a handler could wait for a lock that the interrupted code holds.
        timer = threading.Timer(self.grace_seconds, self._leave, [last_checkpoint])
        timer.daemon = True

        def handle(number: int, frame: FrameType | None) -> None:
            if self.received is not None:
                if number == signal.SIGINT:
                    self._leave(last_checkpoint, why="second Ctrl-C")
                return
            self.received = signal.Signals(number)
            stop(self.received.name)
            timer.start()
            if stops_after:
                self._say_when(stops_after)

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            timer.cancel()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _say_when(self, stops_after: str) -> None:
        assert self.received is not None
        text = (
            f"{self.received.name}: stopping after {stops_after}, or in {self.grace_seconds:g} s (run.grace_seconds); "
            f"a second Ctrl-C exits at once\n"
        )
        # Past all buffers and locks, which the interrupted code may hold.
        with suppress(OSError):
            os.write(_STDERR, text.encode())

    def _leave(self, last_checkpoint: Callable[[], str], why: str = "") -> None:
        name = self.received.name if self.received else "it"
        reason = why or f"not finished {self.grace_seconds:g} s (run.grace_seconds) after {name}"
        sys.stderr.write(f"{reason}: exiting now; last checkpoint is {last_checkpoint()}\n")
        sys.stderr.flush()
        os._exit(self.exit_code or 1)
