"""Sends text of any length over a socket with bounded messages.

A message of one byte is a word (a command, an acknowledgement); any other is a piece of a text, whose first byte tells
whether more follows.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

MAX_MESSAGE_BYTES = 60_000
"""Within the limit of a local socket on every system."""
MAX_TEXT_BYTES = 32_000_000
_MORE, _LAST = b"+", b"="


def send_text(channel: socket.socket, text: bytes, descriptors: Sequence[int] = ()) -> None:
    """Sends a text in pieces; descriptors are sent with the last."""
    size = MAX_MESSAGE_BYTES - 1
    end = max(0, (len(text) - 1) // size) * size
    for start in range(0, end, size):
        channel.send(_MORE + text[start : start + size])
    socket.send_fds(channel, [_LAST + text[end:]], list(descriptors))


class Assembler:
    """Reassembles the pieces of one direction."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, message: bytes) -> bytes | None:
        """Returns the completed word or text, or None if more follows; raises ValueError for an invalid message."""
        if len(message) == 1 and message not in (_MORE, _LAST):
            return message
        kind, piece = message[:1], message[1:]
        self._size += len(piece)
        if kind not in (_MORE, _LAST) or self._size > MAX_TEXT_BYTES:
            raise ValueError(f"a message begins with {message[:20]!r}")
        self._pieces.append(piece)
        if kind == _MORE:
            return None
        text = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return text


def receive(channel: socket.socket, assembler: Assembler) -> tuple[bytes, list[int]]:
    """Waits for the next word or text; empty when the other end is closed."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, MAX_MESSAGE_BYTES, 1)
        if not message:
            return b"", []
        complete = assembler.add(message)
        if complete is not None:
            return complete, descriptors
