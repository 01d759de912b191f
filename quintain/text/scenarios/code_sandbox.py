"""Executes untrusted programs in a process of its own, with limits and a deadline for each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quintain.errors import ResourceError

End = Literal["returned", "raised", "deadline", "killed"]
_ENDS: tuple[End, ...] = ("returned", "raised", "deadline", "killed")
_RUNNER = Path(__file__).with_name("code_runner.py")


@dataclass(frozen=True)
class ProgramLimits:
    """Limits of one program."""

    seconds: float = 10.0
    """Deadline, also of one that sleeps."""
    cpu_seconds: int = 1
    max_memory_bytes: int = 512_000_000
    max_output_bytes: int = 100_000


LIMITS = ProgramLimits()


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended, and the type and text of each value that it returned."""

    end: End
    outputs: tuple[tuple[str, str], ...] = ()
    error: str = ""
    """The class of the error that it raised."""


def run(programs: Sequence[str], inputs: Sequence[object], limits: ProgramLimits = LIMITS) -> list[ProgramEnd]:
    """Calls the f of each program with each input; a program cannot reach files, the network or other processes."""
    order = {"programs": list(programs), "inputs": list(inputs), **vars(limits)}
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(_RUNNER)],
        input=json.dumps(order) + "\n",
        capture_output=True,
        text=True,
        env={},
        start_new_session=True,
        timeout=60 + (limits.seconds + 1) * len(programs),
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != len(programs):
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ResourceError(
            f"the process that executes programs ended with exit code {done.returncode} after {len(lines)} of "
            f"{len(programs)} programs and said: {said}. Check the memory, and the number of processes (ulimit -u)",
            code="E0807",
        )
    return [_outcome(json.loads(line)) for line in lines]


def _outcome(answer: object) -> ProgramEnd:
    """Makes an outcome of what a program wrote, which may be anything."""
    if not isinstance(answer, dict) or answer.get("end") not in _ENDS:
        return ProgramEnd("killed")
    outputs = answer.get("outputs", [])
    try:
        pairs = tuple((str(kind), str(text)) for kind, text in outputs)
    except (TypeError, ValueError):
        return ProgramEnd("killed")
    return ProgramEnd(answer["end"], pairs, str(answer.get("error", ""))[:100])
