"""Appends whole lines to a file: a line is there completely or not at all, also on a full disk.

A kill can tear only the last line, which is cut off when the file is opened again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from quintain.services import atomic

_CHUNK_BYTES = 1 << 16


class LineFile:
    """Holds a file open for appending; each line reaches the operating system before `append` returns."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, atomic.FILE_MODE)
        self._size = _end_of_last_line(self._fd)
        os.ftruncate(self._fd, self._size)

    def append(self, line: bytes) -> None:
        """Writes one line; on an error nothing of it remains in the file."""
        try:
            atomic.write_all(self._fd, line + b"\n")
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line) + 1

    def truncate(self, size: int) -> None:
        """Cuts the file durably; `size` must be the end of a line."""
        os.ftruncate(self._fd, size)
        self._size = size
        os.fsync(self._fd)

    def sync(self) -> None:
        """Makes every line so far survive a power cut."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields where each line begins and the line; leaves out a last line that was never finished."""
    if not path.exists():
        return
    start = 0
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield start, line[:-1]
            start += len(line)


def _end_of_last_line(fd: int) -> int:
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - _CHUNK_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
