"""Streams without a reader: a closed pipe (`quintain list | head`), or a terminal that was closed."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import TextIO


def has_lost_its_reader(stream: TextIO) -> bool:
    """Whether what is written to the stream cannot be read by anything any more."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return False
    pipe = select.poll()
    pipe.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in pipe.poll(0))


def silence(stream: TextIO) -> None:
    """Discards all further output of a stream, so that no later print fails."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
