"""Appends whole lines to a file: a line is written completely or not at all, also on a full disk.

A kill can tear only the last line, which is cut off when the file is opened again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from quintain.errors import RunDirectoryError
from quintain.services import plain_files
from quintain.services.files import atomic

MAX_LINE_BYTES = 16_000_000
"""Longer than any row; a file without line breaks may be larger than the memory."""
_CHUNK_BYTES = 1 << 16


class LineFile:
    """Holds a file open for appending; each line reaches the operating system before `append` returns."""

    def __init__(self, path: Path) -> None:
        self._fd = _opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            self._size = _end_of_last_line(self._fd, path)
            os.ftruncate(self._fd, self._size)
        except BaseException:
            os.close(self._fd)
            raise

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
    try:
        fd = _opened(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    start = 0
    with open(fd, "rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            if line.endswith(b"\n"):
                yield start, line[:-1]
            elif len(line) > MAX_LINE_BYTES:
                raise _too_long(path)
            start += len(line)


def _opened(path: Path, flags: int) -> int:
    try:
        return plain_files.open_file(path, flags)
    except atomic.NotPlain as error:
        raise error.as_error() from error


def _too_long(path: Path) -> RunDirectoryError:
    return RunDirectoryError(
        f"{path}: a line has more than {MAX_LINE_BYTES:_} bytes, expected lines of JSON. Remove that line", code="E0307"
    )


def _end_of_last_line(fd: int, path: Path) -> int:
    size = end = os.fstat(fd).st_size
    while end > 0:
        if size - end > MAX_LINE_BYTES:
            raise _too_long(path)
        start = max(0, end - _CHUNK_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
