"""A process that has imported everything and forks one child per command, so that fifty deaths need one start-up.

Each line on standard input is `{"words": [...], "fates": [...], "log": path}`; the answer is the child's exit status as
`subprocess` would give it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.resume.fates import Fate, install

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
"""Finds this checkout from any working directory."""


class Nursery:
    """Runs `quintain` commands in real processes that may be doomed.

    With `segment_bytes` a checkpoint divides a replay into parts of that size, so that a small one has several.
    """

    def __init__(self, folder: Path, segment_bytes: int | None = None) -> None:
        self.folder = folder
        self.num_children = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.resume.nursery", *([] if segment_bytes is None else [str(segment_bytes)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=ENVIRONMENT,
        )

    def run(self, *words: str, fates: Sequence[Fate] = ()) -> tuple[int, str]:
        """Returns the exit status (minus the signal's number if killed) and everything the command printed."""
        self.num_children += 1
        log = self.folder / f"output-{self.num_children}.txt"
        request = {"words": words, "fates": [asdict(fate) for fate in fates], "log": str(log)}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the nursery itself died"
        return int(answer), log.read_text()

    def start_alone(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Starts a command in an interpreter of its own."""
        options = {"env": ENVIRONMENT, **options}
        return subprocess.Popen([sys.executable, "-m", "quintain", *words], cwd=self.folder, text=True, **options)

    def close(self) -> None:
        """Lets the process end; it has no children between two commands."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=200)
        self.process.stdout.close()


def serve(*segment_bytes: str) -> None:
    """Answers requests until standard input ends."""
    from quintain import Trainer
    from quintain.data import replay_memory

    for number in segment_bytes:
        replay_memory.SEGMENT_BYTES = int(number)
    # Torch imports much of itself only when it first learns.
    Trainer("ppo", "CartPole-v1", num_lanes=1, num_steps=8, batch_size=8, num_epochs=1, writers=[]).train(8)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_live(request))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _live(request: dict[str, list[str]]) -> int:
    from quintain.cli.app import main

    log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    for fate in request["fates"]:
        install(Fate(**fate))  # type: ignore[arg-type]
    exit_code = main(request["words"])
    sys.stdout.flush()
    sys.stderr.flush()
    return exit_code


if __name__ == "__main__":
    serve(*sys.argv[1:])
