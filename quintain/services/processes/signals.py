"""Signals that stop a run: the first saves and stops, a second Ctrl-C ends the process at once.

SIGHUP is sent when a terminal is closed; a process under `nohup` ignores it, and goes on doing so.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import ClassVar, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], None]
"""Handles a signal, as Python's own handlers do."""
NOTICE_SECONDS = 1.5
"""A stop that takes longer than this is explained."""
INTERRUPTED = 128 + signal.SIGINT
_SHOW_CURSOR = b"\x1b[?25h"


class StopSignals:
    """Records the signal that requested a stop."""

    def __init__(self, grace_seconds: float | None = None) -> None:
        """Waits for the end of a stop as long as it takes, or at most so many seconds."""
        self.grace_seconds = grace_seconds
        self.received: signal.Signals | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code for the signal, as in a shell; None without one."""
        return None if self.received is None else 128 + self.received

    def raise_received(self) -> None:
        """Ends a script after its run was saved, as the signal would have: a loop over runs must not go on."""
        if self.received is signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(self.exit_code)

    @contextmanager
    def watching(
        self,
        stop: Callable[[str], None],
        last_checkpoint: Callable[[], str],
        tell: Callable[[str], None],
        stops_after: str = "",
    ) -> Iterator[None]:
        """Calls `stop` with the signal's name when one arrives, here or in the process that relays its own.

        `tell` gets a line if the current work takes a while to finish, or at once if `stops_after` names work that
        takes long as a rule.
        """
        is_over = threading.Event()
        # Made beforehand: a thread made inside a handler could wait for a lock that the interrupted code holds.
        watch = threading.Thread(target=self._watch, args=(is_over, last_checkpoint, tell, stops_after), daemon=True)

        def handle(number: int, frame: FrameType | None) -> None:
            if self.received is not None:
                if number == signal.SIGINT:
                    self._leave(last_checkpoint(), "second Ctrl-C")
                return
            self.received = signal.Signals(number)
            stop(self.received.name)
            watch.start()

        try:
            with handling(handle):
                yield
        finally:
            is_over.set()

    def _watch(
        self, is_over: threading.Event, last_checkpoint: Callable[[], str], tell: Callable[[str], None], after: str
    ) -> None:
        assert self.received is not None
        name, grace = self.received.name, self.grace_seconds
        patience = 0.0 if after else min(NOTICE_SECONDS, NOTICE_SECONDS if grace is None else grace)
        if is_over.wait(patience):
            return
        when = after or "the current update or evaluation"
        limit = "" if grace is None else f", or in {grace:g} s (run.grace_seconds)"
        tell(f"{name}: stopping after {when}{limit}; a second Ctrl-C exits at once")
        if grace is not None and not is_over.wait(grace - patience):
            self._leave(last_checkpoint(), f"not finished {grace:g} s (run.grace_seconds) after {name}")

    def _leave(self, last_checkpoint: str, reason: str) -> None:
        leave(f"{reason}: exiting now; last checkpoint is {last_checkpoint}", self.exit_code or 1)


class SignalRelay:
    """Signals of another process, for a run that trains in a thread, where Python delivers none."""

    installed: ClassVar[SignalRelay | None] = None
    """The relay of this process, if there is one."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._handle: Handler | None = None
        self._lock = threading.Lock()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes it the relay of this process."""
        SignalRelay.installed = self
        try:
            yield
        finally:
            SignalRelay.installed = None

    def deliver(self, name: str) -> None:
        """Handles a signal, now or as soon as there is a handler."""
        with self._lock:
            self._received, handle = signal.Signals[name], self._handle
        if handle is not None:
            handle(self._received, None)

    @contextmanager
    def listening(self, handle: Handler) -> Iterator[None]:
        """Lets a function handle the signals, also one that came before."""
        with self._lock:
            self._handle, before = handle, self._received
        if before is not None:
            handle(before, None)
        try:
            yield
        finally:
            with self._lock:
                self._handle = None


@contextmanager
def handling(handle: Handler) -> Iterator[None]:
    """Lets a function handle the signals that stop a run; in a thread only those that are relayed."""
    relay = SignalRelay.installed
    if relay is not None:
        with relay.listening(handle):
            yield
        return
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in stopping_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopping_signals() -> list[signal.Signals]:
    """Returns the signals that stop a run in this process."""
    is_immune = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if is_immune else [signal.SIGHUP])]


def leave(line: str, exit_code: int) -> None:
    """Ends the process at once, with one line; the terminal gets its cursor back, which a live display hides."""
    has_display = sys.stderr is not sys.__stderr__
    with suppress(OSError):  # a terminal that was closed
        if sys.__stdout__ is not None and sys.__stdout__.isatty():
            os.write(1, _SHOW_CURSOR + b"\n" * has_display)
        os.write(2, f"{line}\n".encode())
    os._exit(exit_code)


class Interrupts:
    """Lets the first Ctrl-C raise KeyboardInterrupt, and a second one end the process at once and quietly.

    The second may come while the first one is still cleaning up. The first may end as another exception, or be lost
    where exceptions are ignored; `is_interrupted` tells.
    """

    def __init__(self) -> None:
        self.is_interrupted = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Handles Ctrl-C inside the block; does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_interrupted:
            leave("stopped by Ctrl-C", INTERRUPTED)
        self.is_interrupted = True
        raise KeyboardInterrupt
