"""When a simulator is made again, and how many of them start at the same time on one machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_SECONDS = 0.05
"""Interval at which a simulator that waits to start looks for a place."""


class RestartClock:
    """Tells whether a simulator is due to be made again, `interval` seconds after it was made; None for never."""

    def __init__(self, interval: float | None) -> None:
        self.interval = interval
        self.begin()

    def begin(self) -> None:
        """Notes that it was made now."""
        self.made_at = time.monotonic()

    def is_due(self, intervals: int = 1) -> bool:
        """Whether it is older than this number of intervals."""
        return self.interval is not None and time.monotonic() - self.made_at > intervals * self.interval


@contextmanager
def place_to_start(limit: int | None) -> Iterator[None]:
    """Waits until fewer than `limit` simulators of this user start or reset on this machine; None does not wait.

    Each place is a lock on a file, which the operating system releases when its process ends, however it ends.
    """
    if limit is None:
        yield
        return
    folder = Path(tempfile.gettempdir()) / f"quintain-minecraft-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW
    places = [os.open(folder / f"place-{number}", flags, 0o600) for number in range(limit)]
    try:
        while not any(map(_took, places)):
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        for place in places:
            os.close(place)


def _took(place: int) -> bool:
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
