"""Captures the output of a child process in a log of bounded size, with the last lines in memory."""

from __future__ import annotations

import os
from contextlib import suppress

from quintain.services import plain_files

MAX_LOG_BYTES = 1_000_000
"""Size at which a log is rotated to `<name>.1`, which replaces the previous one."""
MAX_WAITING_BYTES = 64_000
TAIL_BYTES = 2_000
_READ_BYTES = 1 << 18
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
# A log is looked at in terminals, which obey control characters.
_VISIBLE = bytes(code if code >= 32 or code in b"\n\t" else ord("?") for code in range(256))


class CappedOutput:
    """Reads one child's output from a pipe that never blocks it, and keeps a bounded part."""

    def __init__(self, descriptor: int, name: str) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.name = name
        self.is_closed = False
        self.tail = b""
        self._waiting = b""
        self._log: int | None = None
        self._path = ""

    def drain(self) -> bool:
        """Reads the available output; returns False at the end of the output."""
        while True:
            try:
                chunk = os.read(self.descriptor, _READ_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._keep(chunk.translate(_VISIBLE))
            if len(chunk) < _READ_BYTES:
                return True

    def log_to(self, directory: str) -> None:
        """Writes the output to a file in this directory from now on, starting with the buffered part."""
        path = os.path.join(directory, f"{self.name}.log")
        if self._log is None:
            with suppress(OSError):  # a log that cannot be written must not cost the child
                self._log = plain_files.open_file(path, _LOG_FLAGS)
                self._path = path
                self._write(self._waiting)
                self._waiting = b""

    def close(self) -> None:
        self.is_closed = True
        for descriptor in (self.descriptor, self._log):
            if descriptor is not None:
                os.close(descriptor)

    def _keep(self, chunk: bytes) -> None:
        self.tail = (self.tail + chunk)[-TAIL_BYTES:]
        if self._log is None:
            self._waiting = (self._waiting + chunk)[:MAX_WAITING_BYTES]
        else:
            self._write(chunk)

    def _write(self, chunk: bytes) -> None:
        assert self._log is not None
        with suppress(OSError):  # the disk may be full; the child goes on
            if os.fstat(self._log).st_size + len(chunk) > MAX_LOG_BYTES:
                os.replace(self._path, f"{self._path}.1")
                os.close(self._log)
                self._log = plain_files.open_file(self._path, _LOG_FLAGS)
            os.write(self._log, chunk[-MAX_LOG_BYTES:])
