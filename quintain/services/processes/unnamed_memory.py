"""Memory that processes share by a descriptor: without a name, so nobody can find it by chance or leave it behind."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress


def allocate(size: int) -> int:
    """Returns the descriptor of so many zero bytes; the kernel frees them with their last user."""
    descriptor = growing()
    os.truncate(descriptor, size)
    if hasattr(fcntl, "F_ADD_SEALS"):
        # Whoever shares it could otherwise cut it off, and the next to look there would be killed by the kernel.
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return descriptor


def growing() -> int:
    """Returns the descriptor of no bytes yet, to be written to like a file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("quintain", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
