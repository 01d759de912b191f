"""Lets a process strike itself at a chosen call of a chosen place: repeatable on any machine, however busy."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SYSTEM_CALLS = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir", "ftruncate", "posix_fallocate", "link")
HANG = "HANG"
NAP = "NAP"
"""Takes longer than the time after which a stop is explained."""


@dataclass(frozen=True)
class Fate:
    """Names a place, which call of it is the fatal one, and what happens there: a signal to itself, or a pause."""

    place: str
    call: int
    what: str = "SIGKILL"


class _Countdown:
    def __init__(self, fate: Fate) -> None:
        self.fate = fate
        self.calls_left = fate.call

    def is_up(self) -> bool:
        self.calls_left -= 1
        return self.calls_left == 0

    def strike(self) -> None:
        if self.fate.what in (HANG, NAP):
            time.sleep(600 if self.fate.what == HANG else 2)
        else:
            os.kill(os.getpid(), signal.Signals[self.fate.what])


def install(fate: Fate) -> None:
    """Arms the current process."""
    places()[fate.place](_Countdown(fate))


def places() -> dict[str, Callable[[_Countdown], None]]:
    """Returns the places by name, each with what arms it."""
    from quintain.algorithms.optimizer import Optimizer
    from quintain.core.progress import Progress
    from quintain.rollouts.evaluate import Evaluator
    from quintain.rollouts.sync_collector import SyncCollector
    from quintain.runs.run import Run
    from quintain.services.checkpoints.manager import CheckpointManager
    from quintain.services.files.run_directory import RunDirectory
    from quintain.services.reporting.metrics_file import MetricsFile
    from quintain.trainers.hosted import HostedLoop
    from tests.resume import hosted_training

    return {
        "collect": lambda c: _before(SyncCollector, "_step", c),
        "update": lambda c: _before(Optimizer, "apply", c),
        "hosted iteration": lambda c: _before(hosted_training, "learning_rate", c),
        "tick": lambda c: _before(HostedLoop, "tick", c),
        "between stages": lambda c: _after(Progress, "next_stage", c),
        "evaluation": lambda c: _inside(Evaluator, "play", c, only_env_steps=True),
        "start": lambda c: _inside(Run, "open_directory", c),
        "restore": lambda c: _inside(Run, "restore", c),
        "write checkpoint": lambda c: _inside(CheckpointManager, "_write", c),
        "before rename": lambda c: _inside(CheckpointManager, "_write", c, calls=("rename",)),
        "after rename": lambda c: _after(CheckpointManager, "_write", c),
        "retention": lambda c: _inside(CheckpointManager, "_retire", c),
        "metrics": lambda c: _inside(MetricsFile, "append", c, calls=("write",), half=True),
        "status": lambda c: _inside(RunDirectory, "write_status", c),
    }


WRITING = ("write checkpoint", "before rename", "after rename", "retention", "metrics", "status")
"""The places in which something is on its way to the disk."""


def _before(owner: Any, name: str, countdown: _Countdown) -> None:
    original = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        if countdown.is_up():
            countdown.strike()
        return original(*arguments, **options)

    setattr(owner, name, call)


def _after(owner: Any, name: str, countdown: _Countdown) -> None:
    original = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if countdown.is_up():
            countdown.strike()
        return result

    setattr(owner, name, call)


def _inside(
    owner: Any,
    name: str,
    countdown: _Countdown,
    *,
    calls: tuple[str, ...] = SYSTEM_CALLS,
    half: bool = False,
    only_env_steps: bool = False,
) -> None:
    """Counts system calls, or steps of an environment, but only while the method runs."""
    original = getattr(owner, name)
    depth = 0

    def entered(*arguments: Any, **options: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            return original(*arguments, **options)
        finally:
            depth -= 1

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if depth and countdown.is_up():
                if half:
                    fd, data = arguments
                    function(fd, bytes(data)[: len(data) // 2])
                countdown.strike()
            return function(*arguments, **options)

        return call

    setattr(owner, name, entered)
    if only_env_steps:
        from quintain.envs.gym.lanes import LaneEnv

        LaneEnv.step = counted(LaneEnv.step)  # type: ignore[method-assign]
        return
    for function in calls:
        setattr(os, function, counted(getattr(os, function)))
