"""Writes the metrics of a run, one JSON line per report; a full disk delays rows but never stops training."""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from quintain.core.state import MOST_COUNTED
from quintain.errors import RunDirectoryError
from quintain.services.files.line_file import LineFile, read_lines

MAX_BUFFERED_ROWS = 1000

Row = dict[str, float]


class MetricsFile:
    """Appends rows to metrics.jsonl; `warn` is called once for each period in which the disk refuses them."""

    def __init__(self, path: Path, *, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._file = LineFile(path)
        self._waiting: deque[bytes] = deque()
        self._is_paused = False
        self.num_dropped = 0
        """Rows dropped because the disk stayed full for too long."""

    @property
    def num_waiting(self) -> int:
        """Number of rows that will be written when there is space again."""
        return len(self._waiting)

    def append(self, step: int, row: Mapping[str, float]) -> None:
        """Writes one row; if the disk refuses, buffers the newest thousand. Never raises OSError."""
        if len(self._waiting) == MAX_BUFFERED_ROWS:
            self._waiting.popleft()
            self.num_dropped += 1
        self._waiting.append(_encode(step, row))
        self._flush()

    def sync(self) -> None:
        """Makes the rows so far durable; called with each commit, whose rows must not be lost."""
        self._flush(durably=True)

    def truncate_after(self, step: int, updates: int = MOST_COUNTED) -> int:
        """Drops the rows after a step or a number of updates, which a resumed run writes again; returns how many.

        The file is truncated once, so it is consistent at any time, also on a full disk. Lines at the end that are not
        rows, as a power cut leaves them, are dropped too.
        """
        cut, num_dropped = 0, 0
        for start, line in read_lines(self._path):
            row = _decode(line)
            if row is None:
                continue
            if num_dropped or row["step"] > step or row.get("time/iterations", 0) > updates:
                num_dropped += 1
            else:
                cut = start + len(line) + 1
        self._file.truncate(cut)
        return num_dropped

    def rows(self) -> Iterator[dict[str, float]]:
        """Yields the rows in the file, oldest first."""
        return read_rows(self._path)

    def close(self) -> None:
        """Writes buffered rows, if possible, and closes the file."""
        self._flush()
        self._file.close()

    def _flush(self, *, durably: bool = False) -> None:
        try:
            while self._waiting:
                self._file.append(self._waiting[0])
                self._waiting.popleft()
            if durably:
                self._file.sync()
        except OSError as error:
            if not self._is_paused:
                said = os.strerror(error.errno) if error.errno else str(error)
                self._warn(f"warning[W0810]: metrics sink paused: {said} (rows wait in memory for space)")
            self._is_paused = True
        else:
            self._is_paused = False


def read_rows(path: Path) -> Iterator[dict[str, float]]:
    """Yields the rows of a metrics file, also of one being written; a value that was not finite is NaN."""
    for number, (_, line) in enumerate(read_lines(path), start=1):
        row = _decode(line)
        if row is None:
            found = f"{path}:{number}: found {line[:40]!r}, expected a JSON object with a step"
            raise RunDirectoryError(f"{found}. Remove that line", code="E0307")
        yield row


def some_rows(path: Path, last_step: int, *, most: int = 2000, always: bytes = b'"eval/mean_reward"') -> list[Row]:
    """Returns rows up to a step, oldest first: those with a metric, and about `most` of the others, evenly chosen."""
    lines = [line for _, line in read_lines(path)] if path.is_file() else []
    stride = -(-len(lines) // most) if lines else 1
    chosen = (line for number, line in enumerate(lines) if number % stride == 0 or always in line)
    rows = filter(None, map(_decode, chosen))
    return [row for row in rows if row["step"] <= last_step]


def _encode(step: int, row: Mapping[str, float]) -> bytes:
    # JSON has no NaN; null is what readers of tables take for it.
    values = {name: float(value) for name, value in row.items() if name != "step"}
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return json.dumps({"step": step, **finite}, allow_nan=False).encode()


def _decode(line: bytes) -> dict[str, float] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        return None
    return {name: math.nan if value is None else value for name, value in row.items()}
