"""Kills a child process at every system call of a piece of work, to see what is left on disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

WATCHED = (
    "open",
    "write",
    "fsync",
    "rename",
    "mkdir",
    "unlink",
    "rmdir",
    "ftruncate",
    "pwrite",
    "posix_fallocate",
    "link",
)

KillAt = Callable[[Callable[[], object], int, str], bool]


class _Countdown:
    """Replaces the watched functions of `os` by ones that end the process at the chosen call."""

    def __init__(self, fatal_call: int, moment: str) -> None:
        self.calls_left = fatal_call
        self.moment = moment
        for name in WATCHED:
            setattr(os, name, self._fatal(getattr(os, name), name))

    def _fatal(self, original: Callable[..., object], name: str) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            self.calls_left -= 1
            if self.calls_left == 0:
                if self.moment == "half" and name == "write":
                    fd, data = arguments
                    original(fd, bytes(data)[: len(data) // 2])  # type: ignore[call-overload, arg-type]
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return call


@pytest.fixture
def kill_at() -> KillAt:
    """Gives `kill_at(work, k, moment)`: runs `work` in a child that dies at call k; says if it got there.

    `moment` is "before" the call, or "half" for a write of which only half arrives.
    """

    def run(work: Callable[[], object], fatal_call: int, moment: str) -> bool:
        child = os.fork()
        if child == 0:
            exit_code = 1
            try:
                _Countdown(fatal_call, moment)
                work()
                exit_code = 0
            finally:
                os._exit(exit_code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return True
        assert os.WEXITSTATUS(status) == 0, "the work failed by itself"
        return False

    return run
