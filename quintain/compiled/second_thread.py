"""Parallel work in two threads. Torch releases the interpreter's lock in each operation, so that both get a core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

_DEADLINE_SECONDS = 600.0
"""Timeout of work, which takes milliseconds; without it, a thread that died would be waited for forever."""


class SecondThread:
    """Executes functions in order: in a second thread while it helps, else at once."""

    def __init__(self) -> None:
        self.pool: ThreadPoolExecutor | None = None
        self.pending: list[Future[None]] = []
        self.is_helping = False

    @contextmanager
    def helping(self) -> Iterator[None]:
        """Splits torch's threads between both for a while; does nothing with one thread."""
        num_threads = torch.get_num_threads()
        if num_threads < 2:
            yield
            return
        torch.set_num_threads(num_threads // 2)
        self.is_helping = True
        try:
            yield
        finally:
            self.is_helping = False
            try:
                self.wait()
            finally:
                torch.set_num_threads(num_threads)

    def hand(self, work: Callable[[], None]) -> None:
        """Queues a function after all earlier ones."""
        if not self.is_helping:
            work()
            return
        if self.pool is None:
            self.pool = ThreadPoolExecutor(1, thread_name_prefix="learner")
        self.pending.append(self.pool.submit(_with_own_share, torch.get_num_threads(), work))

    def wait(self) -> None:
        """Waits until all queued functions are done, and raises their errors."""
        pending, self.pending = self.pending, []
        for work in pending:
            work.result(_DEADLINE_SECONDS)


def _with_own_share(num_threads: int, work: Callable[[], None]) -> None:
    # Each thread has to say so itself: else its products would be shared out again, and rounded differently.
    torch.set_num_threads(num_threads)
    work()
