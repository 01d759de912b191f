"""Work in two threads. Torch lets other threads run during each of its operations, so that both get a core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

_DEADLINE_SECONDS = 600.0
"""What is handed over takes milliseconds; without an end, a thread that died would be waited for in silence."""


class SecondThread:
    """Does what it is handed in order: in a thread of its own while it helps, else at once."""

    def __init__(self) -> None:
        self.pool: ThreadPoolExecutor | None = None
        self.pending: list[Future[None]] = []
        self.is_helping = False

    @contextmanager
    def helping(self) -> Iterator[None]:
        """Shares torch's threads between both for a while; with one thread only, there is no help."""
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
        """Has some work done after all that was handed over before."""
        if not self.is_helping:
            work()
            return
        if self.pool is None:
            self.pool = ThreadPoolExecutor(1, thread_name_prefix="learner")
        self.pending.append(self.pool.submit(_with_own_share, torch.get_num_threads(), work))

    def wait(self) -> None:
        """Waits until all that was handed over is done, and raises what went wrong there."""
        pending, self.pending = self.pending, []
        for work in pending:
            work.result(_DEADLINE_SECONDS)


def _with_own_share(num_threads: int, work: Callable[[], None]) -> None:
    # Each thread has to say so itself: else its products would be shared out again, and rounded differently.
    torch.set_num_threads(num_threads)
    work()
