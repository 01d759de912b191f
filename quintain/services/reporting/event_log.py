"""Records errors and recoveries of a run as JSON lines, for scripts and for debugging."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

from quintain.services.files.line_file import LineFile, read_lines
from quintain.services.reporting.redaction import redact
from quintain.typing import Json


class EventLog:
    """Appends numbered records to events.jsonl; the numbering continues after a resume."""

    def __init__(self, path: Path) -> None:
        self._next_seq = _last_seq(path) + 1
        self._file = LineFile(path)
        self.num_dropped = 0
        """Records that the disk refused; their numbers are missing in the file."""

    def append(self, kind: str, *, step: int, code: str | None = None, detail: Json = None) -> None:
        """Writes one record without secrets; a disk error does not stop training, but is counted."""
        record = {
            "t_mono": time.monotonic(),
            "t_utc": datetime.now(UTC).isoformat(),
            "seq": self._next_seq,
            "kind": kind,
            "code": code,
            "step": step,
            "detail": redact(detail) if isinstance(detail, str) else detail,
        }
        self._next_seq += 1
        try:
            self._file.append(json.dumps(record).encode())
        except OSError:
            self.num_dropped += 1

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _last_seq(path: Path) -> int:
    last = 0
    for _, line in read_lines(path):
        try:
            last = max(last, int(json.loads(line)["seq"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            # A line that is not ours stays for the reader; it has no number to go on from.
            continue
    return last
