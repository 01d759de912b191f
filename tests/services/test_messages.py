from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from quintain.services.processes.messages import MAX_MESSAGE_BYTES, MAX_TEXT_BYTES, Assembler, receive, send_text


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        yield one, other


PIECE = MAX_MESSAGE_BYTES - 1


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 400_000])
def test_a_text_of_any_length_arrives_whole_with_its_descriptor(size: int, ends) -> None:
    text = os.urandom(size)
    reader, writer = os.pipe()
    sender = threading.Thread(target=send_text, args=(ends[0], text, [writer]))
    sender.start()
    found, descriptors = receive(ends[1], Assembler())
    sender.join(timeout=10)
    assert found == text
    os.write(descriptors[0], b"through")
    assert os.read(reader, 10) == b"through"
    for descriptor in (reader, writer, *descriptors):
        os.close(descriptor)


def test_words_and_texts_alternate_and_the_end_is_empty(ends) -> None:
    assembler = Assembler()
    ends[0].send(b"k")
    send_text(ends[0], b"{}")
    ends[0].send(b"s")
    ends[0].close()
    assert [receive(ends[1], assembler)[0] for _ in range(4)] == [b"k", b"{}", b"s", b""]


@pytest.mark.parametrize("message", [b"nonsense", b"\x80\x04]", b"k2"])
def test_nonsense_is_told_apart(message: bytes) -> None:
    with pytest.raises(ValueError, match="a message begins with"):
        Assembler().add(message)


def test_a_text_without_end_is_refused() -> None:
    assembler = Assembler()
    piece = b"+" + bytes(PIECE)
    for _ in range(MAX_TEXT_BYTES // PIECE):
        assert assembler.add(piece) is None
    with pytest.raises(ValueError, match="a message begins with"):
        assembler.add(piece)
