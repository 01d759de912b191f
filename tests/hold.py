"""Lets a run stand still after chosen rows of its metrics until a test lets it go on, so that it cannot end too soon.

A test that kills or signals a run races with the end of that run on a machine that is fast, or busy. A held run goes
on as always between its rows, waits inside the call that wrote the chosen one, and still sees signals.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SECONDS = 100.0
"""How long a test waits for what must come; it is there to end a suite, not to measure."""


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[Any] | None = None) -> None:
    """Waits until something is so; fails if the process ends before, or if it never comes."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process is None or process.poll() is None, f"it ended before that: {process.returncode}"
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.005)


class Hold:
    """Where a run stands still: start it by `launcher` in place of `("-m", "quintain")`."""

    def __init__(self, folder: Path, *rows: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hold-", dir=folder))
        self.rows = rows
        self.launcher = ("-m", "tests.hold", str(self.folder), ",".join(map(str, rows)))

    def is_reached(self, row: int) -> bool:
        return (self.folder / f"held-{row}").exists()

    def wait(self, process: subprocess.Popen[Any], row: int) -> None:
        """Waits until the run stands still after its `row`-th row."""
        wait_for(lambda: self.is_reached(row), process)

    def let_go(self, row: int | None = None) -> None:
        """Lets the run pass a row, or all of them, now or when it comes there."""
        for each in self.rows if row is None else (row,):
            (self.folder / f"go-{each}").touch()


def main(folder: Path, rows: set[int], words: list[str]) -> int:
    from quintain.cli import app
    from quintain.services.reporting.metrics_file import MetricsFile

    append = MetricsFile.append

    def append_and_hold(self: MetricsFile, step: int, row: Mapping[str, float]) -> None:
        append(self, step, row)
        number = self._path.read_bytes().count(b"\n")
        if number in rows:
            (folder / f"held-{number}").touch()
            while not (folder / f"go-{number}").exists():
                time.sleep(0.005)

    MetricsFile.append = append_and_hold  # type: ignore[method-assign]
    return app.main(words)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), {int(row) for row in sys.argv[2].split(",")}, sys.argv[3:]))
