"""Runs a sweep from Python or for the command line: checks, plan, processes, summary."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pydantic import ValidationError

from quintain.errors import SettingsError
from quintain.runs.sweeps.directory import PLAN, SavedPlan, SavedRun, SweepDirectory
from quintain.runs.sweeps.drive import Drive
from quintain.runs.sweeps.grid import DEFAULT_METRIC, GRID_CODE, Grid
from quintain.runs.sweeps.plan import plan_runs, refuse_changes, with_forks
from quintain.runs.sweeps.table import SweepTable, summarize
from quintain.services.files.run_names import check_run_id
from quintain.services.processes.signals import StopSignals
from quintain.services.reporting.digits import plural
from quintain.settings.errors import problems_of, settings_error
from quintain.settings.tree import RunFile
from quintain.typing import Keyword, Keywords

DEFAULT_SWEEPS_DIR = Path("sweeps")


@dataclass(frozen=True)
class Swept:
    """How a sweep ended."""

    table: SweepTable
    signals: StopSignals
    exit_code: int
    """That of the first run that failed, or of the signal that stopped it."""


def sweep(
    train: str | Path | RunFile | Mapping[str, object],
    grid: Mapping[str, Keyword] | Sequence[Keywords] = (),
    *,
    settings: Mapping[str, Keyword] | None = None,
    seeds: int | Sequence[int] | None = None,
    jobs: int = 1,
    name: str = "sweep",
    sweeps_dir: str | Path = DEFAULT_SWEEPS_DIR,
    tuned: bool = False,
    metric: str = DEFAULT_METRIC,
    mode: str = "max",
    runs_dir: str | Path = "runs",
    quiet: bool = False,
) -> SweepTable:
    """Trains every combination of a grid with every seed, `jobs` at a time, and returns the summary.

    `train` is a run file, "ALGORITHM ENV", a `RunFile` or its mapping; a folder and names as for `quintain sweep`.
    Called again with the same name, it repeats no finished run and resumes half-done ones exactly. A run that fails
    does not stop the others; `table.failed` lists it. Ctrl-C saves all runs and raises KeyboardInterrupt.
    """
    base = train if isinstance(train, RunFile) else None
    if isinstance(train, Mapping):
        base = RunFile.from_mapping(train)
    values = {
        "train": str(train) if base is None else "(Python)",
        "tuned": tuned,
        "settings": dict(settings or {}),
        "grid": grid or {},
        "seeds": seeds if seeds is None or isinstance(seeds, int) else list(seeds),
        "jobs": jobs,
        "metric": metric,
        "mode": mode,
    }
    try:
        made = Grid.made_of(values)
    except ValidationError as error:
        raise settings_error(
            problems_of(error.errors(include_url=False), lambda at: []), lambda at: "sweep()"
        ) from None
    place = SweepDirectory(Path(sweeps_dir) / check_run_id(name))
    swept = run_sweep(made, place, base=base, runs_dir=Path(runs_dir), stream=None if quiet else sys.stdout)
    swept.signals.raise_received()
    return swept.table


def run_sweep(
    grid: Grid,
    place: SweepDirectory,
    *,
    jobs: int | None = None,
    base: RunFile | None = None,
    runs_dir: Path = Path("runs"),
    stream: TextIO | None = None,
) -> Swept:
    """Runs a grid to its end in a directory, which may hold a part of it already; nothing is written for a mistake."""
    runs = with_forks(plan_runs(grid, base), place, runs_dir)
    refuse_changes(runs, place)
    jobs = grid.file.jobs if jobs is None else jobs
    if jobs < 1:
        raise SettingsError(f"jobs: found {jobs}, expected at least 1", code=GRID_CODE)
    plan = SavedPlan(
        axes=tuple(grid.axes),
        metric=grid.file.metric,
        mode=grid.file.mode,
        runs=tuple(SavedRun(id=run.run_id, combination=run.combination.shown, seed=run.seed) for run in runs),
    )
    with place.opened():
        for run in runs:
            place.write(f"{place.planned.name}/{run.run_id}.yaml", run.run_file.to_yaml())
        place.write(PLAN, json.dumps(plan.model_dump(mode="json"), indent=1) + "\n")
        finished = {run.id for run in summarize(place).runs if run.state == "finished"}
        waiting = [run for run in runs if run.run_id not in finished]
        drive = Drive(place, runs, waiting, jobs, stream, plan.metric, place.read_failures())
        seeds = {run.seed for run in runs}
        drive.tell(
            f"sweep {place.name}: {plural(len(runs), 'run')} ({plural(len(grid.combinations), 'combination')}, "
            f"{plural(len(seeds), 'seed')}), {jobs} at a time, in {place.path}"
        )
        if (cores := len(os.sched_getaffinity(0))) < jobs:
            drive.tell(f"note: {jobs} runs at a time share {plural(cores, 'core')}, so each is slower")
        if finished:
            drive.tell(f"note: {plural(len(finished), 'run')} of {len(runs)} finished before, and not repeated")
        signals = drive.train() if waiting else StopSignals()
        table = summarize(place)
        table.save(place)
    if not any(run.value is not None for run in table.runs) and finished | {run.id for run in table.runs}:
        drive.tell(f"note: no run has a metric {plan.metric}; name one that is in metrics.jsonl with metric:")
    return Swept(table, signals, signals.exit_code or drive.exit_code)
