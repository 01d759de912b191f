"""Tells now and then that a run is still starting, so that a slow environment is not taken for one that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET_SECONDS = 10.0
"""Time before the first note; each further one comes after twice the time of the one before."""


@contextmanager
def telling_of_slow_start(tell: Callable[[str], None]) -> Iterator[None]:
    """Calls `tell` from a thread while its block takes long."""
    began, is_over = time.monotonic(), threading.Event()

    def tell_now_and_then() -> None:
        wait = QUIET_SECONDS
        while not is_over.wait(wait):
            seconds = time.monotonic() - began
            tell(f"note: still starting after {seconds:.0f} s: environments, policy and processes are being made")
            wait *= 2

    thread = threading.Thread(target=tell_now_and_then, name="slow start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
