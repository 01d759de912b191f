"""`timers.json`: the timings of a process as a tree, and statistics of each metric; in ML-Agents' format."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quintain.services import plain_files
from quintain.services.files import atomic
from quintain.services.reporting.redaction import redact

TIMERS_FILE = "timers.json"
FORMAT_VERSION = "0.1.0"
_INSIDE: Mapping[str, tuple[str, ...]] = {
    "advance": ("collect", "estimate", "update", "publish"),
    "collect": ("act", "env"),
}
"""Timers that run inside another."""

Totals = Mapping[str, tuple[float, int]]
"""Seconds and number of calls of each timer."""


class TimersFile:
    """Records the start of a process and its metrics, and writes them at its end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / TIMERS_FILE
        self.started = time.time()
        self.begin = time.perf_counter()
        self.gauges: dict[str, dict[str, float]] = {}

    def reported(self, row: Mapping[str, float]) -> None:
        """Records a row of metrics."""
        for name, value in row.items():
            known = self.gauges.setdefault(name, {"value": value, "min": value, "max": value, "count": 0})
            known.update(
                value=value, min=min(value, known["min"]), max=max(value, known["max"]), count=known["count"] + 1
            )

    def save(self, totals: Totals, versions: Mapping[str, Any], *, are_parallel: frozenset[str] = frozenset()) -> None:
        """Replaces the file; timers in `are_parallel` ran in a separate thread."""
        total = time.perf_counter() - self.begin
        inner = {name for outer in _INSIDE if outer in totals for name in _INSIDE[outer]}
        outer = {name: _node(name, totals, are_parallel) for name in totals if name not in inner}
        learning = _with_self(sum(node["total"] for node in outer.values()), 1, outer)
        root = {
            "name": "root",
            "gauges": self.gauges,
            "metadata": {
                "timer_format_version": FORMAT_VERSION,
                "start_time_seconds": str(int(self.started)),
                "end_time_seconds": str(int(time.time())),
                "command_line_arguments": redact(" ".join(sys.argv)),
                **{f"{name}_version": str(version) for name, version in versions.items()},
            },
            **_with_self(total, 1, {"TrainerController.start_learning": learning}),
        }
        plain_files.make_folder(self.path.parent)
        atomic.replace_file(self.path, f"{json.dumps(root, indent=4)}\n".encode())


def _node(name: str, totals: Totals, are_parallel: frozenset[str]) -> dict[str, Any]:
    seconds, count = totals.get(name, (0.0, 0))
    children = {each: _node(each, totals, are_parallel) for each in _INSIDE.get(name, ()) if each in totals}
    mark = {"is_parallel": True} if name in are_parallel else {}
    return {**_with_self(seconds, count, children), **mark}


def _with_self(total: float, count: int, children: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a timer with its self time: without the timers inside it, parallel ones excepted."""
    inside = sum(child["total"] for child in children.values() if "is_parallel" not in child)
    node = {"total": total, "count": count, "self": max(0.0, total - inside)}
    return {**node, "children": dict(children)} if children else node
