"""Tells now and then what a run is doing before its first row, so that what is slow is not taken for what hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quintain.trainers.loop import Loop

QUIET_SECONDS = 10.0
"""Time before the first note; each further one comes after twice the time of the one before."""
_END_SECONDS = 5.0


def telling_of_start(tell: Callable[[str], None]) -> AbstractContextManager[None]:
    """Tells that a run is starting, however slow its environments are."""
    return telling_while_slow(tell, lambda: "starting: environments, policy and processes are being made")


def telling_of_first_update(tell: Callable[[str], None], loop: Loop) -> AbstractContextManager[None]:
    """Tells that a loop is in its first update, after which rows show where it is."""
    begun = loop.progress.updates

    def what() -> str:
        return "in the first update: collecting or learning" if loop.progress.updates == begun else ""

    return telling_while_slow(tell, what)


@contextmanager
def telling_while_slow(tell: Callable[[str], None], what: Callable[[], str]) -> Iterator[None]:
    """Calls `tell` from a thread while its block takes long, until `what` returns nothing."""
    began, is_over = time.monotonic(), threading.Event()

    def tell_now_and_then() -> None:
        wait = QUIET_SECONDS
        while not is_over.wait(wait) and (text := what()):
            tell(f"note: {text}, {time.monotonic() - began:.0f} s so far")
            wait *= 2

    thread = threading.Thread(target=tell_now_and_then, name="slow start", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(_END_SECONDS)
