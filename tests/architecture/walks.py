"""Counts the package's own functions on two ways through it: to the first step, and through one interval checkpoint.

Run as a script in an empty directory: `python -m tests.architecture.walks first_step`, or `checkpoint`. Every function
that is entered counts once, methods and properties included; comprehensions, class bodies and functions that run while
a module is imported do not. `docs/concepts/walks.md` has the counts.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType

from quintain.cli.app import main
from tests.architecture.source import PACKAGE

COMMANDS = {
    "first_step": ("train", "ppo", "CartPole-v1"),
    "checkpoint": ("train", "ppo", "CartPole-v1", "total_timesteps=8k", "checkpoint.every_updates=2", "--quiet"),
}
COMMIT = "Run._try_commit"
PHASES = {
    "assemble_parts": "parts are made",
    "Run._commit": "checkpoint at step 0",
    "Loop.advance": "first stage",
    "Loop.train": "the run begins",
    "start": "the run is set up",
}
"""What is going on while a function is on the stack; the first of these that is."""


class Walk:
    """Notes each function of the package when it is first entered, with what was going on then."""

    def __init__(self) -> None:
        self.entered: dict[tuple[str, str], str] = {}

    def note(self, frame: FrameType) -> None:
        code = frame.f_code
        name = (os.path.relpath(code.co_filename, PACKAGE), code.co_qualname)
        if name in self.entered or not _is_function(code):
            return
        below = [caller.f_code for caller in _callers(frame)]
        if not any(each.co_filename.startswith("<frozen importlib") for each in below):
            names = {each.co_qualname for each in below} | {code.co_qualname}
            self.entered[name] = next((phase for mark, phase in PHASES.items() if mark in names), "command line")

    def counts(self) -> dict[str, object]:
        phases = list(self.entered.values())
        return {
            "functions": len(self.entered),
            "files": len({file for file, _ in self.entered}),
            "modules": sum(name.split(".")[0] == "quintain" for name in sys.modules),
            "phases": {phase: phases.count(phase) for phase in dict.fromkeys(phases)},
            "names": [f"{file} {name}" for file, name in self.entered],
        }


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and (code.co_name[0] != "<" or code.co_name == "<lambda>")


def _callers(frame: FrameType) -> list[FrameType]:
    found, caller = [], frame.f_back
    while caller is not None:
        found.append(caller)
        caller = caller.f_back
    return found


def profiler(walk: str) -> Callable[[FrameType, str, object], None]:
    """Returns a function for `sys.setprofile` that prints the counts at the end of a walk and ends the process."""
    noted = Walk()
    is_walking = walk == "first_step"

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal is_walking
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            is_walking = is_walking or code.co_qualname == COMMIT
            if is_walking:
                noted.note(frame)
        is_first_step = event == "call" and code.co_name == "step" and "gymnasium" in code.co_filename
        is_committed = event == "return" and code.co_qualname == COMMIT
        if is_committed if walk == "checkpoint" else is_first_step:
            sys.setprofile(None)
            print(json.dumps(noted.counts()), flush=True)
            os._exit(0)

    return profile


if __name__ == "__main__":
    [_, chosen] = sys.argv
    sys.argv = ["quintain", *COMMANDS[chosen]]
    sys.setprofile(profiler(chosen))
    main()
