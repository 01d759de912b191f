"""The summary of a sweep: per combination the mean over seeds with its interval, as a table, CSV, JSON or Markdown."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev

from quintain.rollouts.episode_results import t_quantile
from quintain.runs.sweeps.directory import SavedPlan, SavedRun, SweepDirectory
from quintain.services.files.line_file import read_lines
from quintain.services.files.run_directory import RunDirectory
from quintain.services.reporting.digits import estimated, measured, plural
from quintain.settings.yaml_text import write_flow
from quintain.typing import Json, JsonObject

CONFIDENCE = 0.95
WAITING = "waiting"
"""The state of a run that was not begun."""
INTERRUPTED = "interrupted"
"""The state of a run that was killed, and will be resumed."""


@dataclass(frozen=True)
class RunResult:
    """One run of a sweep: how far it is, and the last value of the metric."""

    id: str
    combination: dict[str, Json]
    seed: int
    state: str
    step: int = 0
    value: float | None = None
    """The last value of the metric; None if there is none."""
    failure: str = ""
    """Why it failed, in one line."""


@dataclass(frozen=True)
class SweepRow:
    """One combination: the mean of the metric over the seeds whose runs are finished."""

    combination: dict[str, Json]
    runs: tuple[RunResult, ...]
    num_finished: int
    mean: float | None
    low: float | None
    """Lower end of the 95 % interval of the mean, by Student's t; None with fewer than two seeds."""
    high: float | None
    is_best: bool = False
    is_near: bool = False
    """Whether its interval overlaps with that of the best one, so that the seeds cannot tell them apart."""

    def overlaps(self, other: SweepRow) -> bool:
        """Whether the intervals of two combinations overlap; not if one has none."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return False
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class SweepTable:
    """The summary of a sweep; rows are ordered from the best to the worst."""

    name: str
    directory: str
    axes: tuple[str, ...]
    metric: str
    mode: str
    rows: tuple[SweepRow, ...]

    @property
    def runs(self) -> list[RunResult]:
        return [run for row in self.rows for run in row.runs]

    @property
    def best(self) -> SweepRow | None:
        """The combination with the best mean; None if no run has a value."""
        return next((row for row in self.rows if row.is_best), None)

    @property
    def failed(self) -> list[RunResult]:
        return [run for run in self.runs if run.state == "failed"]

    def to_json(self) -> JsonObject:
        about = asdict(self)
        return {**about, "axes": list(self.axes), "finished": sum(row.num_finished for row in self.rows)}

    def to_text(self) -> str:
        """Returns the table for a terminal, and below it a line for each run that failed."""
        cells = [["", *self.axes, "seeds", f"{self.metric} [95 %]", "min", "max"]]
        cells += [_cells(row, self.axes) for row in self.rows]
        widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
        counts = {state: sum(run.state == state for run in self.runs) for state in {run.state for run in self.runs}}
        about = ", ".join(f"{counts[state]} {state}" for state in sorted(counts))
        best = f"; * best by the {self.mode}imum of the mean over seeds" if self.best is not None else ""
        near = ", ~ not told apart from it (intervals overlap)" if any(row.is_near for row in self.rows) else ""
        failures = [f"failed   {run.id}: {run.failure}" for run in self.failed]
        return "\n".join(
            [*(line.rstrip() for line in lines), f"{plural(len(self.runs), 'run')}: {about}{best}{near}", *failures]
        )

    def to_markdown(self) -> str:
        heads = ["", *self.axes, "seeds", f"{self.metric}, mean [95 % interval]", "min", "max"]
        cells = [heads, ["---"] * len(heads), *(_cells(row, self.axes) for row in self.rows)]
        table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells]
        return "\n".join([*table, "", *(f"- failed: {run.id}: {run.failure}" for run in self.failed)]).rstrip() + "\n"

    def to_csv(self) -> str:
        """Returns one line per combination."""
        heads = [*self.axes, "seeds", "finished", "mean", "low", "high", "best"]
        lines: list[list[object]] = [
            [
                *_named(row.combination, self.axes),
                len(row.runs),
                row.num_finished,
                row.mean,
                row.low,
                row.high,
                int(row.is_best),
            ]
            for row in self.rows
        ]
        return _csv([[*heads], *lines])

    def runs_csv(self) -> str:
        """Returns one line per run."""
        heads = ["run", *self.axes, "seed", "state", "step", self.metric, "failure"]
        lines: list[list[object]] = [
            [run.id, *_named(run.combination, self.axes), run.seed, run.state, run.step, run.value, run.failure]
            for run in self.runs
        ]
        return _csv([[*heads], *lines])

    def save(self, place: SweepDirectory) -> None:
        """Writes the summary into the directory of the sweep."""
        place.write("summary.md", self.to_markdown())
        place.write("summary.csv", self.to_csv())
        place.write("summary.json", json.dumps(self.to_json(), indent=1) + "\n")
        place.write("runs.csv", self.runs_csv())


def summarize(place: SweepDirectory) -> SweepTable:
    """Reads the runs of a sweep and summarizes them; changes nothing, also while they run."""
    plan, failures = place.read_plan(), place.read_failures()
    groups: dict[str, list[RunResult]] = {}
    for run in plan.runs:
        groups.setdefault(json.dumps(run.combination), []).append(_result(run, plan, place, failures))
    rows = [_row(runs) for runs in groups.values()]
    sign = 1.0 if plan.mode == "min" else -1.0
    # Stable: equals, and those without a value, stay in the order of the grid.
    rows.sort(key=lambda row: math.inf if row.mean is None else sign * row.mean)
    if rows[0].mean is not None:
        best, *others = rows
        rows = [replace(best, is_best=True), *(replace(row, is_near=row.overlaps(best)) for row in others)]
    return SweepTable(place.name, str(place.path), plan.axes, plan.metric, plan.mode, tuple(rows))


def _result(run: SavedRun, plan: SavedPlan, place: SweepDirectory, failures: dict[str, str]) -> RunResult:
    directory = RunDirectory(place.runs / run.id)
    status = directory.read_status()
    state = WAITING if status is None else str(status.state)
    if status is not None and state == "running":
        try:
            os.kill(int(status.pid or 0), 0)
        except PermissionError:
            pass  # of another user, and alive
        except (OSError, ValueError, OverflowError, TypeError):
            state = INTERRUPTED
    if run.id in failures and state != "finished":
        state = "failed"
    failure = failures.get(run.id, status.reason or "" if status is not None else "") if state == "failed" else ""
    value = last_value(directory, plan.metric)
    return RunResult(run.id, run.combination, run.seed, state, 0 if status is None else status.step, value, failure)


def last_value(directory: RunDirectory, metric: str) -> float | None:
    """Returns the last value of a metric in a run; None if there is none, or it is not a finite one."""
    wanted, last = json.dumps(metric).encode(), b""
    if directory.metrics.is_file():
        for _, line in read_lines(directory.metrics):
            last = line if wanted in line else last
    try:
        value = json.loads(last or b"{}")[metric]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _row(runs: list[RunResult]) -> SweepRow:
    values = [run.value for run in runs if run.state == "finished" and run.value is not None]
    mean, low, high = fmean(values) if values else None, None, None
    if mean is not None and len(values) > 1:
        half = t_quantile(0.5 + 0.5 * CONFIDENCE, len(values) - 1) * stdev(values) / math.sqrt(len(values))
        low, high = mean - half, mean + half
    finished = sum(run.state == "finished" for run in runs)
    return SweepRow(runs[0].combination, tuple(runs), finished, mean, low, high)


def _cells(row: SweepRow, axes: tuple[str, ...]) -> list[str]:
    if row.mean is None:
        mean = "-"
    elif row.low is None or row.high is None:
        mean = measured(row.mean)
    else:
        shown, low, high = estimated(row.mean, row.low, row.high)
        mean = f"{shown} [{low}, {high}]"
    values = [run.value for run in row.runs if run.state == "finished" and run.value is not None]
    ends = [measured(min(values)), measured(max(values))] if values else ["-", "-"]
    mark = "*" if row.is_best else "~" if row.is_near else ""
    return [mark, *_named(row.combination, axes), f"{row.num_finished}/{len(row.runs)}", mean, *ends]


def _named(combination: dict[str, Json], axes: tuple[str, ...]) -> list[str]:
    return [write_flow(combination[name]) if name in combination else "" for name in axes]


def _csv(lines: list[list[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
