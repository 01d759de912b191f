"""The learner's side of a collector process: start, messages, and errors when the process ends."""

from __future__ import annotations

import json
import select
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from quintain.errors import CollectorDied, NonFiniteError, QuintainError
from quintain.placements.remote_errors import RemoteTraceback, error_from_json
from quintain.services.checkpoints.packed_state import unpack_value
from quintain.services.processes.child_environment import code_paths, withheld_note
from quintain.services.processes.supervisor import Supervisor

CHILD_MODULE = "quintain.runs.collector_process"
START_SECONDS = 300.0
"""Timeout for the process to import everything and to make the environment."""
_LAST_WORDS_SECONDS = 2.0


class CollectorProcess:
    """Starts the process and exchanges messages with it; once it has ended, every further call raises the error."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        collectors: Sequence[int],
        supervisor: Supervisor,
        pass_environment: Sequence[str],
    ) -> None:
        """Starts the process of these collectors."""
        self.withheld = withheld_note(pass_environment)
        self.supervisor = supervisor
        self.collectors = collectors
        name = f"collector-{collectors[0]}" if collectors[0] else "collector"
        self.child = self.supervisor.start(name, f"{CHILD_MODULE}:serve")
        self.failure: QuintainError | None = None
        self._inboxes: dict[int, deque[dict[str, Any]]] = {number: deque() for number in collectors}
        self._poller = select.poll()
        for descriptor in (self.child.channel.fileno(), self.supervisor.report_descriptor):
            self._poller.register(descriptor, select.POLLIN)
        self.send({**plan, **code_paths(), "collectors": list(collectors)})

    def send(self, words: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Sends a message. A process that has ended is noticed in `receive`."""
        self.child.send(words, descriptors)

    def receive_from(self, collector: int, seconds: float) -> dict[str, Any] | None:
        """Returns the next message of one of its collectors, or None on timeout; keeps those of the others."""
        deadline = time.monotonic() + seconds
        while not self._inboxes[collector]:
            words = self.receive(max(0.0, deadline - time.monotonic()))
            if words is None:
                return None
            self._inboxes[int(words["collector"])].append(words)
        return self._inboxes[collector].popleft()

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """Returns the next message, or None on timeout; raises the error that ended the process."""
        if self.failure is not None:
            raise self.failure
        deadline = time.monotonic() + seconds
        while True:
            message = self.child.receive()
            if message:
                return self._read(message)
            if message is not None or self.child.is_over:
                self.failure = self._death()
                raise self.failure
            remaining = deadline - time.monotonic()
            if remaining <= 0.0:
                return None
            self._poller.poll(remaining * 1000.0)
            self.supervisor.read_reports()

    def receive_at_start(self) -> dict[str, Any]:
        """Returns a message of the start-up phase; an error or a timeout ends the process."""
        try:
            words = self.receive(START_SECONDS)
            if words is None:
                raise CollectorDied(f"the collector's process was not ready after {START_SECONDS:g} s", code="E0541")
        except BaseException as error:
            self.close()
            if isinstance(error, QuintainError):
                error.notes = (*error.notes, *self.withheld)
            raise
        return words

    def give_up(self, seconds: float) -> CollectorDied:
        """Kills a process that hangs, after taking its stack trace; returns the error that later calls raise."""
        trace = self.supervisor.stack_of(self.child)
        self.failure = CollectorDied(
            f"the collector's process did nothing for {seconds:g} s, and was ended. Continue from the last checkpoint "
            f"with: quintain resume",
            code="E0542",
        )
        self.failure.__cause__ = RemoteTraceback(trace) if trace else None
        self.supervisor.stop([self.child], first=signal.SIGKILL)
        return self.failure

    def close(self) -> None:
        """Asks the process to end, and then ends it."""
        self.child.hang_up()
        self.supervisor.stop([self.child], first=None)

    def _read(self, message: bytes) -> dict[str, Any]:
        try:
            words: dict[str, Any] = json.loads(message)
            if "failed" not in words:
                return words
            self.failure = error_from_json(words["failed"])
            if words["has_evidence"] and isinstance(self.failure, NonFiniteError):
                self.failure.evidence = self._evidence()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.failure = CollectorDied(f"the collector's process sent nonsense ({error})", code="E0541")
        raise self.failure

    def _evidence(self) -> dict[str, Any]:
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while time.monotonic() < deadline:
            message = self.child.receive()
            if message is not None:
                return dict(unpack_value(message)) if message else {}
            self._poller.poll(100.0)
        return {}

    def _death(self) -> CollectorDied:
        with suppress(QuintainError):
            self.supervisor.await_end(self.child, _LAST_WORDS_SECONDS)
        ending = self.child.describe_end() if self.child.is_over else "left the conversation"
        error = CollectorDied(
            f"the collector's process {ending}, and where its lanes were went with it. Continue from the last "
            f"checkpoint with: quintain resume"
        )
        trace = "\n".join(filter(None, (self.child.stack(), self.child.last_output)))
        error.__cause__ = RemoteTraceback(trace) if trace else None
        return error
