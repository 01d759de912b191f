"""Anonymous shared memory, passed between processes by descriptor: it cannot be found by name or left behind.

Its lock excludes processes; the kernel opens it when the process that holds it ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress


def allocate(size: int) -> int:
    """Returns a descriptor of zeroed memory; the kernel frees it with its last user."""
    descriptor = growing()
    os.truncate(descriptor, size)
    if hasattr(fcntl, "F_ADD_SEALS"):
        # Whoever shares it could otherwise cut it off, and the next to look there would be killed by the kernel.
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def growing() -> int:
    """Returns a descriptor of empty memory, to be written like a file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("quintain", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class ProcessLock:
    """A lock on the memory of a descriptor, which it keeps open; excludes other processes, not other threads."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = os.dup(descriptor)

    def __enter__(self) -> None:
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN)
