"""Runs `quintain` commands in real processes that die where a test wants them to.

They are forked from a process that has imported everything, so that fifty deaths need one start-up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests import warm
from tests.resume.fates import Fate, install
from tests.warm import ENVIRONMENT


class Nursery:
    """Runs `quintain` commands in real processes that may be doomed.

    With `segment_bytes` a checkpoint divides a replay into parts of that size, so that a small one has several. With
    `imports` these modules are imported once and not by every command.
    """

    def __init__(self, folder: Path, segment_bytes: int | None = None, imports: Sequence[str] = ()) -> None:
        self.folder = folder
        self.num_children = 0
        self.segment_bytes = segment_bytes
        self.imports = imports

    def run(self, *words: str, fates: Sequence[Fate] = ()) -> tuple[int, str]:
        """Returns the exit status (minus the signal's number if killed) and everything the command printed."""
        self.num_children += 1
        log = self.folder / f"output-{self.num_children}.txt"
        request = {"words": words, "fates": [asdict(fate) for fate in fates], "segment_bytes": self.segment_bytes}
        command = [sys.executable, "-m", "tests.resume.nursery", json.dumps(request)]
        with log.open("w") as file:
            process = warm.Popen(
                command, cwd=self.folder, env=ENVIRONMENT, stdout=file, stderr=subprocess.STDOUT, imports=self.imports
            )
        return process.wait(timeout=200), log.read_text()

    def start(
        self, *words: str, launcher: tuple[str, ...] = ("-m", "quintain"), **options: Any
    ) -> subprocess.Popen[str]:
        """Starts a command that a test may signal itself."""
        command = [sys.executable, *launcher, *words]
        return warm.Popen(command, cwd=self.folder, text=True, **{"env": ENVIRONMENT, **options})

    def start_alone(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Starts a command in an interpreter of its own."""
        options = {"env": ENVIRONMENT, **options}
        return subprocess.Popen([sys.executable, "-m", "quintain", *words], cwd=self.folder, text=True, **options)

    def close(self) -> None:
        """Has nothing to end: a command ends before the next begins."""


def live(words: list[str], fates: list[dict[str, Any]], segment_bytes: int | None) -> int:
    from quintain.cli.app import main
    from quintain.data import replay_memory

    if segment_bytes is not None:
        replay_memory.SEGMENT_BYTES = segment_bytes
    for fate in fates:
        install(Fate(**fate))
    return main(words)


if __name__ == "__main__":
    sys.exit(live(**json.loads(sys.argv[1])))
