"""A small process that forks children on request, captures their output, and ends with its owner, children first.

Orphans that children left behind, in any session, are adopted and ended too. The server has one thread and has imported
the modules that children need, so that a fork is safe and takes milliseconds. It holds no secrets: its environment has
none, and children inherit nothing else of the owner but the descriptors sent for them. The user's own script is not
imported, so it needs no `if __name__ == "__main__"`. Imports only the standard library; its owner names the modules for
children.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from quintain.services.processes.capped_output import CappedOutput
from quintain.services.processes.messages import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from quintain.typing import JsonObject

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_SECONDS = 0.5
_LAST_SWEEPS = 200
_MAX_DESCRIPTORS = 8


def main(descriptor: int, preload: list[str]) -> None:
    """Serves the owner at the other end of this socket, until it closes the socket or dies."""
    owner_pid = os.getppid()
    for module in preload:
        importlib.import_module(module)
    ForkServer(socket.socket(fileno=descriptor), owner_pid).serve()


@dataclass
class _Child:
    number: int
    output: CappedOutput


class ForkServer:
    """Starts, signals and reaps children; reports every end to the owner."""

    def __init__(self, owner: socket.socket, owner_pid: int) -> None:
        self._owner = owner
        self._owner_pid = owner_pid
        self._pid = os.getpid()
        self._children: dict[int, _Child] = {}
        self._log_directory = ""
        self._removed_at_end: list[str] = []
        self._adopted: set[int] = set()
        """Orphans that were present while no child died: a live child detached them, and may still use them."""
        self._next_look = 0.0
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        # A scheduler that stops a job tells every process of it; this one and its children end with their owner.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(owner, selectors.EVENT_READ, self._obey)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._bury)
        self._is_serving = True

    def serve(self) -> None:
        try:
            while self._is_serving and os.getppid() == self._owner_pid:
                for key, _ in self._selector.select(_LOOK_SECONDS):
                    key.data()
                self._look_for_strays()
        finally:
            self._end_everyone()
            for directory in self._removed_at_end:
                shutil.rmtree(directory, ignore_errors=True)

    def _obey(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._owner, MAX_MESSAGE_BYTES, _MAX_DESCRIPTORS)
        except ConnectionError:
            data = b""
        if not data:
            self._is_serving = False
            return
        request: JsonObject = json.loads(data)
        if request["do"] == "start":
            self._start(request, descriptors)
        elif request["do"] == "signal":
            for pid, child in self._children.items():
                # Only children that were not waited for are listed, so no pid can belong to somebody else by now.
                if child.number == request["child"]:
                    _send_signal(pid, request["signal"])
        elif request["do"] == "log":
            self._log_directory = request["directory"]
            for child in self._children.values():
                child.output.log_to(self._log_directory)
        elif request["do"] == "remove":
            self._removed_at_end.append(request["directory"])

    def _start(self, request: JsonObject, descriptors: list[int]) -> None:
        ends: tuple[int, ...] = ()
        try:
            reader, writer = ends = os.pipe()
            pid = os.fork()
        except OSError as error:
            for descriptor in (*descriptors, *ends):
                os.close(descriptor)
            words = f"the system cannot start another process: {error}"
            self._tell({"ended": request["child"], "exit_code": os.EX_OSERR, "output": words})
            return
        if pid == 0:
            run_to_exit(partial(self._become_child, request, descriptors, writer))
        for descriptor in (*descriptors, writer):
            os.close(descriptor)
        with suppress(OSError):
            os.setpgid(pid, pid)
        output = CappedOutput(reader, request["name"])
        if self._log_directory:
            output.log_to(self._log_directory)
        self._children[pid] = _Child(request["child"], output)
        self._selector.register(reader, selectors.EVENT_READ, lambda: self._listen(output))
        self._tell({"started": request["child"], "pid": pid})

    def _listen(self, output: CappedOutput) -> None:
        # One round of events may hold both the end of a child and its last words.
        if not output.is_closed and not output.drain():
            self._selector.unregister(output.descriptor)

    def _bury(self) -> None:
        os.read(self._wake_reader, 4096)
        while (pid := _who_ended()) is not None:
            # What the child itself started must not outlive it. As long as nobody has asked for its status, the number
            # of the child cannot be that of somebody else.
            _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            child = self._children.pop(pid, None)
            if pid in self._adopted:
                self._adopted.discard(pid)
                continue
            for stray in self._strays() - self._adopted:
                _send_signal(stray, signal.SIGKILL)
            if child is None:
                continue
            child.output.drain()
            with suppress(KeyError):
                self._selector.unregister(child.output.descriptor)
            child.output.close()
            exit_code = os.waitstatus_to_exitcode(status)
            tail = child.output.tail.decode(errors="replace")
            self._tell({"ended": child.number, "exit_code": exit_code, "output": tail})

    def _strays(self) -> set[int]:
        """Returns the descendants of this process that it did not start itself."""
        try:
            with open(f"/proc/self/task/{self._pid}/children") as file:
                return set(map(int, file.read().split())) - self._children.keys()
        except OSError:
            return set()

    def _look_for_strays(self) -> None:
        if time.monotonic() > self._next_look:
            self._adopted = self._strays()
            self._next_look = time.monotonic() + _LOOK_SECONDS

    def _end_everyone(self) -> None:
        for pid in self._children:
            _kill_group(pid)
        # Each death may leave further orphans to this process; when it has no child at all, it may go.
        with suppress(ChildProcessError):
            for _ in range(_LAST_SWEEPS):
                for pid in self._strays():
                    _send_signal(pid, signal.SIGKILL)
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(0.005)

    def _tell(self, report: JsonObject) -> None:
        with suppress(ConnectionError):
            self._owner.send(json.dumps(report).encode())

    def _become_child(self, request: JsonObject, descriptors: list[int], output: int) -> None:
        self._let_go(output)
        stack = descriptors[-1]
        faulthandler.enable(stack, all_threads=True)
        faulthandler.register(signal.SIGUSR1, stack, all_threads=True)
        module, _, name = request["entry"].partition(":")
        function: Callable[..., None] = getattr(importlib.import_module(module), name)
        function(*descriptors[:-1])

    def _let_go(self, output: int) -> None:
        """Closes the server's resources in a child, and makes the child die with the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Ctrl-C is for the owner, who saves first and then ends its children.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_with_parent(self._pid)
        os.setpgid(0, 0)
        self._selector.close()
        self._owner.close()
        for child in self._children.values():
            child.output.close()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)
        os.close(nothing)
        os.close(output)
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        for stream, number in (("stdout", 1), ("stderr", 2)):
            setattr(sys, stream, os.fdopen(number, "w", buffering=1, errors="backslashreplace", closefd=False))


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends, where the kernel can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # It may have ended before that.
        if os.getppid() != parent:
            os._exit(1)


def run_to_exit(main: Callable[[], None]) -> NoReturn:
    """Calls a function and ends the process, without the rest of what the parent was doing."""
    exit_code = 1
    try:
        main()
        exit_code = 0
    except SystemExit as ending:
        exit_code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(exit_code)


def _who_ended() -> int | None:
    """Returns a child that has ended, without reaping it."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def _kill_group(pid: int) -> None:
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _send_signal(pid: int, number: int) -> None:
    """Sends a signal to a process, and kills the group that it leads with it."""
    if number == signal.SIGKILL:
        _kill_group(pid)
    with suppress(OSError):
        os.kill(pid, number)
