"""The measurements: one JSON object per line in a file that is only ever appended to, so that any run can go on.

A row has the commit of the code that was measured. Rounds of several commits are never put together: a comparison is
made of the newest commit that has enough rounds of both sides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import peers
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

    def has(self, workload: str, contestant: Contestant, commit: str, repetition: int) -> bool:
        return any(row["repetition"] == repetition for row in at(self.of(workload, contestant), commit))

    def has_failed(self, workload: str, contestant: Contestant, commit: str) -> bool:
        """Says whether a contestant cannot do this workload here."""
        rows = at(self.of(workload, contestant), commit)
        return len(rows) >= MAX_FAILURES and all("error" in row for row in rows)

    def num_quiet(self, workload: str, contestant: Contestant, commit: str) -> int:
        return len(quiet(at(self.of(workload, contestant), commit)))


def contestant_of(row: Row) -> Contestant:
    return Contestant(row["peer"], row["entry"], row["threads"])


def quiet(rows: Iterable[Row]) -> list[Row]:
    """Returns the runs that count: those without an error and without others on the machine, whoever's they are."""
    return [row for row in rows if "error" not in row and row["foreign_cores"] <= QUIET_CORES]


def at(rows: Iterable[Row], commit: str) -> list[Row]:
    """Returns the rows of one commit."""
    return [row for row in rows if row["commit"] == commit]


def rounds(rows: list[Row], peer: str) -> dict[str, int]:
    """Returns how many repetitions have both quintain and a peer, by commit, the last one measured at the end."""
    last = {row["commit"]: place for place, row in enumerate(rows)}
    counts = {}
    for commit in sorted(last, key=lambda commit: last[commit]):
        ran = [{row["repetition"] for row in at(rows, commit) if row["peer"] == name} for name in (peers.OURS, peer)]
        if count := len(ran[0] & ran[1]):
            counts[commit] = count
    return counts


def newest_set(rows: list[Row], peer: str, enough: int) -> list[Row]:
    """Returns the rows of quintain and a peer from the newest commit that has enough rounds, else from the newest.

    Of the repetitions only those that have both; none where the two were never measured together.
    """
    counts = rounds(rows, peer)
    if not counts:
        return []
    complete = [commit for commit, count in counts.items() if count >= enough]
    return both(at(rows, (complete or list(counts))[-1]), peer)


def both(rows: list[Row], peer: str) -> list[Row]:
    """Returns the rows of the repetitions that have quintain and a peer, of these two."""
    ran = [{row["repetition"] for row in rows if row["peer"] == name} for name in (peers.OURS, peer)]
    return [row for row in rows if row["peer"] in (peers.OURS, peer) and row["repetition"] in ran[0] & ran[1]]


def best_of(rows: list[Row], peer: str, *, is_behind: bool = False) -> Contestant | None:
    """Returns the fastest way in which a peer does the workload of these rows, in lockstep or one version behind."""
    by_contestant: dict[Contestant, list[float]] = {}
    for row in rows:
        contestant = contestant_of(row)
        if row["peer"] == peer and contestant.is_behind == is_behind:
            by_contestant.setdefault(contestant, []).append(score(row))
    if not by_contestant:
        return None
    return max(by_contestant, key=lambda contestant: median(by_contestant[contestant]))


def score(row: Row) -> float:
    """Returns what is compared: steps per second; where there is a goal, how often per second it would be reached.

    The clock of a goal starts with the process and ends when the mean return is reached; 0 where it never was.
    """
    if "goal_seconds" in row:
        return 0.0 if row["goal_seconds"] is None else 1.0 / float(row["goal_seconds"])
    return float(row["steps_per_second"])


def all_steps_score(row: Row) -> float:
    """Returns how often per second all steps of a workload with a goal would be done, whether it is reached or not."""
    return 1.0 / float(row["total_seconds"])


def ratios(rows: list[Row], ours: Contestant, theirs: Contestant, score: Callable[[Row], float] = score) -> list[float]:
    """Returns how many times better we were in each repetition of each commit that has both.

    Infinity stands for a goal that only we reached, 0 for one that only they reached; there is none where neither did.
    """
    scores = {(contestant_of(row), row["commit"], row["repetition"]): score(row) for row in rows}
    pairs = [
        (mine, scores[theirs, commit, repetition])
        for (contestant, commit, repetition), mine in scores.items()
        if contestant == ours and (theirs, commit, repetition) in scores
    ]
    return [mine / other if other else math.inf for mine, other in pairs if mine or other]


def spread(values: list[float]) -> str:
    """Returns the median and the range of ratios, as pages show them."""
    return f"{median(values):.2f} x ({min(values):.2f} to {max(values):.2f})"


def column(rows: list[Row], contestant: Contestant, name: str) -> list[float]:
    """Returns one measurement in all rows of a contestant."""
    return [row[name] for row in rows if contestant_of(row) == contestant]
