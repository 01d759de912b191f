"""Supervises child processes of any kind: forked by a small server, identified by number, never left over.

A child communicates over its own socket, one message at a time. Its end is reported by the server that forked it, so it
is noticed at once even if a descendant still holds the socket open.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.errors import ResourceError
from quintain.services.processes import unnamed_memory
from quintain.services.processes.child_environment import child_environment
from quintain.services.processes.messages import MAX_MESSAGE_BYTES, Assembler, send_text

if TYPE_CHECKING:
    from quintain.typing import JsonObject

GRACE_SECONDS = 2.0
PATIENCE_SECONDS = 0.25
"""Timeout of one poll for an answer, so that the caller can do other work."""
_RECEIVE_LIMIT = struct.pack("ll", 0, int(PATIENCE_SECONDS * 1e6))
_SEND_LIMIT = struct.pack("ll", 10, 0)
_MAX_STACK_BYTES = 20_000
_BOOT = (
    "import json, sys; path, preload, descriptor = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from quintain.services.processes.fork_server import main; main(descriptor, preload)"
)


class Child:
    """One child process: its socket, and its exit code once it has ended."""

    def __init__(self, number: int, name: str, channel: socket.socket, stack: int) -> None:
        self.number = number
        self.name = name
        self.channel = channel
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.last_output = ""
        self._stack = stack
        self._assembler = Assembler()
        self._close = weakref.finalize(self, _close_ends, channel, stack)

    @property
    def is_over(self) -> bool:
        return self.exit_code is not None

    def send_word(self, word: bytes) -> None:
        """Sends one byte. A child that has ended is noticed in `receive`."""
        with suppress(OSError):
            self.channel.send(word)

    def send(self, words: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Sends JSON with descriptors. A child that has ended is noticed in `receive`."""
        with suppress(OSError):
            send_text(self.channel, json.dumps(words).encode(), descriptors)

    def receive(self, *, waits: bool = False) -> bytes | None:
        """Returns the next message, empty at the end of the connection, or None if it is not complete yet."""
        flags = 0 if waits else socket.MSG_DONTWAIT
        while True:
            try:
                message = self.channel.recv(MAX_MESSAGE_BYTES, flags)
                complete = self._assembler.add(message) if message else b""
            except BlockingIOError:
                return None
            except (OSError, ValueError):
                return b""
            if complete is not None:
                return complete

    def stack(self) -> str:
        """Returns the stack trace that the child's interpreter wrote when it crashed or was asked."""
        return os.pread(self._stack, _MAX_STACK_BYTES, 0).decode(errors="replace")

    def hang_up(self) -> None:
        """Closes the connection, which asks the child to end."""
        with suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)

    def describe_end(self) -> str:
        """Describes how the child ended, as a part of a sentence.

        >>> child = Child.__new__(Child)
        >>> child.exit_code = -9
        >>> child.describe_end()
        'was killed by SIGKILL'
        """
        if self.exit_code is None:
            return "is still running"
        if self.exit_code >= 0:
            return f"ended with exit code {self.exit_code}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-self.exit_code).name}"
        return f"was killed by signal {-self.exit_code}"

    def close(self) -> None:
        self._close()


class Supervisor:
    """Starts children, reports their ends, and stops them; without children there is no server."""

    def __init__(self, preload: Sequence[str], pass_environment: Iterable[str] = ()) -> None:
        self._preload = list(preload)
        self._pass_environment = tuple(pass_environment)
        self._children: dict[int, Child] = {}
        self._num_started = 0
        self._log_directory: Path | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._reports: socket.socket | None = None
        self._finalizer: weakref.finalize[[subprocess.Popen[bytes], socket.socket], Supervisor] | None = None

    def start(self, name: str, entry: str) -> Child:
        """Starts `module:function`, which gets the descriptor of its socket; returns before it runs."""
        try:
            return self._start(name, entry)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise ResourceError(
                f"out of file descriptors ({limit}) after {len(self._children)} processes, which take two each. "
                f"Use fewer, or raise the limit with: ulimit -n {2 * limit}",
                code="E0805",
            ) from error

    def _start(self, name: str, entry: str) -> Child:
        reports = self._serving()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Limits that the kernel keeps: nobody waits for ever for a child that does not answer, or does not listen.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECEIVE_LIMIT)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_LIMIT)
        stack = unnamed_memory.growing()
        self._num_started += 1
        child = Child(self._num_started, name, ours, stack)
        request = {"do": "start", "child": child.number, "name": name, "entry": entry}
        with theirs:
            socket.send_fds(reports, [json.dumps(request).encode()], [theirs.fileno(), stack])
        self._children[child.number] = child
        return child

    @property
    def report_descriptor(self) -> int:
        """Becomes readable when a child has ended; `read_reports` then updates the children."""
        assert self._reports is not None, "no child was started"
        return self._reports.fileno()

    def read_reports(self) -> None:
        """Records the ends of children that were reported since the last call."""
        while self._reports is not None:
            try:
                message = self._reports.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self._lose_server()
                return
            report = json.loads(message)
            if "started" in report:
                self._children[report["started"]].pid = report["pid"]
            elif (child := self._children.pop(report["ended"], None)) is not None:
                child.exit_code, child.last_output = report["exit_code"], report["output"]

    def await_end(self, child: Child, seconds: float) -> bool:
        """Waits until a child has ended; returns False on timeout."""
        deadline = time.monotonic() + seconds
        while not child.is_over:
            remaining = deadline - time.monotonic()
            if remaining <= 0.0:
                return False
            # Looked up each time: with the last child the server itself may go.
            select.select([self.report_descriptor], [], [], remaining)
            self.read_reports()
        return True

    def stack_of(self, child: Child) -> str:
        """Returns the stack trace of a child that does not answer; works also while it is stuck in a library."""
        before = child.stack()
        self.signal(child, signal.SIGUSR1)
        deadline = time.monotonic() + GRACE_SECONDS
        seen = before
        while time.monotonic() < deadline and not child.is_over:
            time.sleep(0.05)
            now = child.stack()
            if now == seen and now != before:
                break
            seen = now
        return seen[len(before) :]

    def stop(self, children: Sequence[Child], *, first: signal.Signals | None = signal.SIGTERM) -> None:
        """Ends children: sends a signal, and kills those that remain after a grace period."""
        for child in children:
            if not child.is_over and first is not None:
                self.signal(child, first)
                # The server must not wait for room for its reports while this waits for room for requests.
                self.read_reports()
        deadline = time.monotonic() + GRACE_SECONDS
        for child in children:
            if not self.await_end(child, deadline - time.monotonic()):
                self.signal(child, signal.SIGKILL)
        for child in children:
            self.await_end(child, GRACE_SECONDS)
            child.close()
        if not self._children:
            self.close()

    def log_to(self, directory: Path) -> None:
        """Writes the output of children to `<directory>/<name>.log` from now on."""
        self._log_directory = directory
        self._request({"do": "log", "directory": str(directory)})

    def remove_at_end(self, directory: Path) -> None:
        """Removes a directory when the server and all children have ended, however this process ends."""
        self._request({"do": "remove", "directory": str(directory)})

    def close(self) -> None:
        """Ends the server and with it every child."""
        if self._finalizer is not None:
            self._finalizer()
        self._server = self._reports = self._finalizer = None

    def _serving(self) -> socket.socket:
        if self._reports is not None:
            return self._reports
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = [os.path.abspath(entry) for entry in sys.path]
        order = json.dumps([path, self._preload, theirs.fileno()])
        with theirs:
            server = subprocess.Popen(
                [sys.executable, "-c", _BOOT, order],
                pass_fds=[theirs.fileno()],
                env=child_environment(self._pass_environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Signals from the terminal are for this process, which passes on what its children need to know.
                start_new_session=True,
            )
        self._server, self._reports = server, ours
        self._finalizer = weakref.finalize(self, _end_server, server, ours)
        if self._log_directory is not None:
            self.log_to(self._log_directory)
        return ours

    def signal(self, child: Child, number: signal.Signals) -> None:
        """Sends a signal to a child, without waiting for its effect."""
        self._request({"do": "signal", "child": child.number, "signal": int(number)})

    def _request(self, request: JsonObject) -> None:
        if self._reports is not None:
            with suppress(OSError):  # a server that is gone is reported where its children are waited for
                self._reports.send(json.dumps(request).encode())

    def _lose_server(self) -> None:
        """Marks every child as dead: the kernel kills them with their server."""
        for child in self._children.values():
            child.exit_code = -signal.SIGKILL
        has_served = any(child.pid is not None for child in self._children.values())
        self._children.clear()
        server = self._server
        self.close()
        exit_code = None if server is None else server.returncode
        if not has_served and exit_code:
            raise ResourceError(
                f"the process that starts workers ended with exit code {exit_code} before it started one; its own "
                f"words are above",
                code="E0807",
            )


def _close_ends(channel: socket.socket, stack: int) -> None:
    channel.close()
    os.close(stack)


def _end_server(server: subprocess.Popen[bytes], reports: socket.socket) -> None:
    # Closing our end is the request to end; the server kills its children first.
    reports.close()
    try:
        server.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(timeout=GRACE_SECONDS)
