"""Memory that processes share by a descriptor: without a name, so nobody can find it by chance or leave it behind."""

from __future__ import annotations

import os
import tempfile


def allocate(size: int) -> int:
    """Returns the descriptor of so many zero bytes; the kernel frees them with their last user."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("quintain", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor
