"""Learns in a second thread of the process: updates run while agents act on in the first.

Both compute at the same time wherever the interpreter's lock is free: in the kernels of torch and in our own.
"""

from __future__ import annotations

import queue
import threading
import weakref
from typing import TYPE_CHECKING

import torch

from quintain.errors import NonFiniteError, QuintainError

if TYPE_CHECKING:
    from quintain.trainers.threaded import Work
    from quintain.typing import Metrics

    Inbox = queue.Queue[Work | None]

_END_SECONDS = 5.0
_LOOK_SECONDS = 3600.0


class _Desk:
    """What both threads see: what came of the work, and whether it is done."""

    def __init__(self) -> None:
        self.inbox: Inbox = queue.Queue(maxsize=2)
        self.is_done = threading.Event()
        self.metrics: Metrics = {}
        self.failure: BaseException | None = None


class LearnerThread:
    """Works in a thread that begins with the first work and ends with this object, or with the process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._desk = _Desk()
        self._thread: threading.Thread | None = None
        self._end = weakref.finalize(self, self._desk.inbox.put, None, timeout=_END_SECONDS)

    def begin(self, work: Work) -> None:
        assert self._end.alive, "a learner that was closed learns no more"
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._desk, torch.get_num_threads()), name=f"learner of {self.name}", daemon=True
            )
            self._thread.start()
        self._desk.is_done.clear()
        self._desk.failure = None
        self._desk.inbox.put(work, timeout=_END_SECONDS)

    def wait(self, seconds: float) -> bool:
        return self._desk.is_done.wait(seconds) or self._has_vanished

    def result(self) -> Metrics:
        failure = self._desk.failure or (RuntimeError("it ended without a word") if self._has_vanished else None)
        if failure is not None:
            raise self._explained(failure)
        return self._desk.metrics

    @property
    def has_failed(self) -> bool:
        failure = self._desk.failure
        return self._has_vanished or (failure is not None and not isinstance(failure, NonFiniteError))

    @property
    def _has_vanished(self) -> bool:
        """Whether the thread is gone and left work undone, which nothing here lets happen."""
        return self._thread is not None and not self._thread.is_alive() and not self._desk.is_done.is_set()

    def close(self) -> None:
        self._end()
        if self._thread is not None:
            self._thread.join(timeout=_END_SECONDS)

    def _explained(self, failure: BaseException) -> BaseException:
        """Returns the error that ends the run: the thread's own where it is one of ours, with its own traceback."""
        if isinstance(failure, QuintainError | MemoryError | OSError):
            return failure
        first = str(failure).strip().partition("\n")[0]
        error = QuintainError(
            f"the thread that learns {self.name} failed: {type(failure).__name__}: {first}", code="E0102"
        )
        error.__cause__ = failure
        return error


def _work(desk: _Desk, num_threads: int) -> None:
    """Is the whole life of the thread; it knows nothing of the object that started it, which may be gone."""
    torch.set_num_threads(num_threads)
    while True:
        try:
            work = desk.inbox.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        if work is None:
            return
        try:
            desk.metrics = work()
        except BaseException as error:
            desk.failure = error
        # Work holds the trainer, which would never end while this thread waits for more.
        work = None
        desk.is_done.set()
