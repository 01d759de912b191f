"""Reserves disk space for one more checkpoint, so that a full disk does not lose the work since the last one."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from quintain.services import plain_files
from quintain.services.files import atomic

RESERVE = ".reserve"

# Checkpoints of one run differ by a few digits of JSON; a coarse size saves reallocating for each.
_GRAIN = 1 << 16


class DiskReserve:
    """A file as large as one checkpoint that is removed when the disk is full."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / RESERVE

    def hold(self, num_bytes: int) -> bool:
        """Allocates or enlarges the file; returns whether the space is reserved.

        If the disk is full or cannot allocate, there is no reserve until the next call.
        """
        num_bytes = -(-num_bytes // _GRAIN) * _GRAIN
        try:
            if not self._path.exists() or self._path.stat().st_size < num_bytes:
                _allocate(self._path, num_bytes)
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Frees the reserved space."""
        self._path.unlink(missing_ok=True)


def probe(directory: Path, num_bytes: int) -> None:
    """Allocates, syncs and removes a file of that size; raises OSError without space or permission."""
    path = directory / f"{atomic.TEMPORARY_PREFIX}probe-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        _allocate(path, max(num_bytes, 1))
    finally:
        path.unlink(missing_ok=True)


def _allocate(path: Path, num_bytes: int) -> None:
    if atomic.free_bytes(path.parent) < num_bytes:
        # Asked first, because a file system may fill the disk before it says that it is too small.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    fd = plain_files.open_file(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, num_bytes)
        os.fsync(fd)
    finally:
        os.close(fd)
