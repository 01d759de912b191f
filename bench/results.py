"""The measurements: one JSON object per line in a file that is only ever appended to, so that any run can go on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from contestants import Contestant

Row = dict[str, Any]

QUIET_CORES = 0.3
"""What others may use while a run counts."""
MAX_FAILURES = 2
"""Failures without a success after which nobody is asked again."""


class Results:
    """Holds all rows of a file and adds to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text() if path.is_file() else ""
        # A process that was killed may have left half a line, which nothing may be appended to.
        self.is_torn = text != "" and not text.endswith("\n")
        self.rows: list[Row] = [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(("\n" if self.is_torn else "") + json.dumps(row) + "\n")
        self.is_torn = False

    def of(self, workload: str, contestant: Contestant | None = None) -> list[Row]:
        """Returns the rows of a workload, of all or of one contestant."""
        return [
            row
            for row in self.rows
            if row["workload"] == workload and (contestant is None or contestant_of(row) == contestant)
        ]

    def has(self, workload: str, contestant: Contestant, repetition: int) -> bool:
        return any(row["repetition"] == repetition for row in self.of(workload, contestant))

    def has_failed(self, workload: str, contestant: Contestant) -> bool:
        """Says whether a contestant cannot do this workload here."""
        rows = self.of(workload, contestant)
        return len(rows) >= MAX_FAILURES and all("error" in row for row in rows)

    def num_quiet(self, workload: str, contestant: Contestant) -> int:
        return len(quiet(self.of(workload, contestant)))


def contestant_of(row: Row) -> Contestant:
    return Contestant(row["peer"], row["entry"], row["threads"])


def quiet(rows: Iterable[Row]) -> list[Row]:
    """Returns the runs that count: those without an error and without others on the machine, whoever's they are."""
    return [row for row in rows if "error" not in row and row["foreign_cores"] <= QUIET_CORES]


def best_of(rows: list[Row], peer: str) -> Contestant | None:
    """Returns the fastest way in which a peer does the workload of these rows."""
    by_contestant: dict[Contestant, list[float]] = {}
    for row in rows:
        if row["peer"] == peer:
            by_contestant.setdefault(contestant_of(row), []).append(score(row))
    if not by_contestant:
        return None
    return max(by_contestant, key=lambda contestant: median(by_contestant[contestant]))


def score(row: Row) -> float:
    """Returns what is compared: steps per second; where there is a goal, how often per second it would be reached.

    With a goal the clock starts with the process and ends when equally many steps are done by everybody.
    """
    if "total_seconds" in row:
        return 1.0 / float(row["total_seconds"])
    return float(row["steps_per_second"])


def ratios(rows: list[Row], ours: Contestant, theirs: Contestant) -> list[float]:
    """Returns how many times better we were in each repetition that has both."""
    scores = {(contestant_of(row), row["repetition"]): score(row) for row in rows}
    repetitions = sorted({row["repetition"] for row in rows})
    pairs = [(scores.get((ours, number)), scores.get((theirs, number))) for number in repetitions]
    return [mine / other for mine, other in pairs if mine is not None and other is not None]
