"""Asynchronous writer: a bounded queue and a background thread, so that training never waits for a slow writer."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from quintain.services.reporting.writers import RunHeader, RunSummary, Writer, WriterComplaint

CAPACITY = 1000
"""Maximum number of queued rows and notes; then the oldest is dropped for each new one."""
MAX_FAILURES = 3
CLOSE_SECONDS = 15.0
"""Timeout for the queue at the end of a run: a display may need seconds to be imported."""

Call = Callable[[], None]


class CallQueue:
    """An ordered queue of calls for a thread; keeps the newest if there are too many."""

    def __init__(self, capacity: int) -> None:
        self.num_dropped = 0
        self._capacity = capacity
        self._news = threading.Condition()
        self._calls: deque[Call] = deque()
        self._is_ended = False

    def put(self, call: Call) -> None:
        """Adds a call; drops the oldest one if there are too many."""
        with self._news:
            if len(self._calls) >= self._capacity:
                self._calls.popleft()
                self.num_dropped += 1
            self._calls.append(call)
            self._news.notify()

    def end(self) -> None:
        """Marks the end of calls."""
        with self._news:
            self._is_ended = True
            self._news.notify()

    def abandon(self) -> int:
        """Drops the queued calls and returns the number of all dropped calls."""
        with self._news:
            self.num_dropped += len(self._calls)
            self._calls.clear()
            self._is_ended = True
        return self.num_dropped

    def take(self) -> Call | None:
        """Waits for the next call; None at the end."""
        with self._news:
            while not self._calls and not self._is_ended:
                self._news.wait(timeout=1.0)
            return self._calls.popleft() if self._calls else None


class QueuedWriter:
    """Passes a run's rows to another writer, in order, from a background thread.

    Errors of that thread are raised as `WriterComplaint` in a later call, so that only one thread prints.
    """

    def __init__(
        self, writer: Writer, name: str, *, capacity: int = CAPACITY, close_seconds: float = CLOSE_SECONDS
    ) -> None:
        self.writer = writer
        self.name = name
        self._capacity = capacity
        self._close_seconds = close_seconds
        self._queue = CallQueue(capacity)
        self._thread: threading.Thread | None = None
        self._failures: list[Exception] = []

    def open(self, header: RunHeader) -> None:
        """Starts the thread, which first opens the writer."""
        if self._thread is None:
            # A daemon: a writer that hangs must not keep the process.
            self._thread = threading.Thread(
                target=self._work, args=(self._queue, header), name=f"{self.name} writer", daemon=True
            )
            self._thread.start()

    def write(self, step: int, row: Mapping[str, float]) -> None:
        kept = dict(row)
        self._complain_of_failures()
        self._queue.put(lambda: self.writer.write(step, kept))

    def note(self, text: str) -> None:
        self._complain_of_failures()
        self._queue.put(lambda: self.writer.note(text))

    def close(self, summary: RunSummary) -> None:
        """Waits shortly for the queue, and reports how many calls were dropped."""
        thread, self._thread = self._thread, None
        queue, self._queue = self._queue, CallQueue(self._capacity)
        deadline = time.monotonic() + self._close_seconds
        queue.end()
        if thread is not None:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        is_stuck = thread is not None and thread.is_alive()
        num_dropped = queue.abandon()
        if not is_stuck and len(self._failures) < MAX_FAILURES:
            is_stuck = not self._finish(summary, deadline)
        self._complain_of_failures()
        if num_dropped or is_stuck:
            raise WriterComplaint(
                f"warning[W0812]: {self.name} was too slow and lacks {num_dropped} rows, which metrics.jsonl has",
                is_final=False,
            )

    def _finish(self, summary: RunSummary, deadline: float) -> bool:
        """Closes the writer in a thread too, because it may wait for a network; returns whether it finished in time."""
        thread = threading.Thread(target=self._try, args=(lambda: self.writer.close(summary),), daemon=True)
        thread.start()
        thread.join(timeout=max(0.0, deadline - time.monotonic()))
        return not thread.is_alive()

    def _complain_of_failures(self) -> None:
        if len(self._failures) >= MAX_FAILURES:
            last = self._failures[-1]
            raise WriterComplaint(
                f"warning[W0811]: {self.name} disabled after {MAX_FAILURES} failures "
                f"(the last: {type(last).__name__}: {last}); metrics stay in metrics.jsonl",
                is_final=True,
            )

    def _work(self, queue: CallQueue, header: RunHeader) -> None:
        self._try(lambda: self.writer.open(header))
        while len(self._failures) < MAX_FAILURES and (call := queue.take()) is not None:
            self._try(call)

    def _try(self, call: Call) -> None:
        try:
            call()
        except Exception as error:  # whatever a display does wrong must never cost a training run
            self._failures.append(error)
