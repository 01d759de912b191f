"""Plans a sweep: one validated run file and one stable run id per combination and seed. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import SettingsError
from quintain.runs.launch import checkpoint_of, require_known_env, with_weights
from quintain.runs.output import env_name
from quintain.runs.restore import names_given_by, stored_settings
from quintain.runs.sweeps.directory import SweepDirectory
from quintain.runs.sweeps.grid import GRID_CODE, Combination, Grid
from quintain.services.files.run_directory import RunDirectory
from quintain.services.files.run_names import check_run_id
from quintain.settings.fingerprint import changed_keys
from quintain.settings.tree import RunFile
from quintain.settings.yaml_text import write_flow

SEED = "experiment.seed"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    run_id: str
    combination: Combination
    seed: int
    run_file: RunFile


def plan_runs(grid: Grid, base: RunFile | None = None) -> list[PlannedRun]:
    """Makes and validates the settings of every run, combination by combination; refuses two that are equal.

    `base` takes the place of the run file that the grid names.
    """
    runs: list[PlannedRun] = []
    seen: dict[str, PlannedRun] = {}
    for combination in grid.combinations:
        for seed in (None,) if grid.seeds is None else grid.seeds:
            settings = {**grid.file.settings, **combination.settings, **({} if seed is None else {SEED: seed})}
            try:
                run_file = _run_file(grid, base, [f"{key}={write_flow(value)}" for key, value in settings.items()])
            except SettingsError as error:
                raise _in_grid(error, grid) from error
            found = run_file.experiment.seed
            run = PlannedRun(check_run_id(combination.run_id(found)), combination, found, run_file)
            settings = run_file.to_dict()
            settings["run"]["id"] = None
            if (other := seen.setdefault(json.dumps(settings), run)) is not run:
                raise SettingsError(
                    f"{grid.place + ': ' if grid.place else ''}two combinations are equal: {other.combination} and "
                    f"{combination}. Leave one out",
                    code=GRID_CODE,
                )
            runs.append(run)
    for run_file in {env_name(run.run_file): run.run_file for run in runs}.values():
        require_known_env(run_file)
    return runs


def _run_file(grid: Grid, base: RunFile | None, overrides: list[str]) -> RunFile:
    overrides = [*overrides, *grid.overrides]
    if base is not None:
        return base.with_overrides(*overrides)
    path = grid.run_file_path()
    if path is not None:
        if grid.file.tuned:
            raise SettingsError("tuned goes with two names, such as train: ppo LunarLander-v3", code=GRID_CODE)
        return RunFile.load(path, *overrides)
    algorithm, env = grid.file.train.split()
    return RunFile.from_names(algorithm, env, *overrides, tuned=grid.file.tuned)


def _in_grid(error: SettingsError, grid: Grid) -> SettingsError:
    """Returns the error of a setting with the grid's place in it."""
    message = error.message
    if not any(message.startswith(f"override {text}:") for text in grid.overrides):
        place = f"{grid.place}: " if grid.place else ""
        message = place + message.removeprefix("override ")
    if message.endswith("expected a list"):
        message += "; in a grid, a value that is a list stands in the list of values, such as [[64, 64], [256, 256]]"
    return SettingsError(message, code=error.code, notes=error.notes)


def with_forks(runs: Iterable[PlannedRun], place: SweepDirectory, runs_dir: Path) -> list[PlannedRun]:
    """Replaces the run that a fork starts with by the exact checkpoint; names without a path are of `runs_dir`."""
    exact = []
    for run in runs:
        run_file = run.run_file
        if (named := run_file.experiment.initialize_from) is not None and "#" not in named:
            run_file, _ = with_weights(run_file, place.runs, checkpoint_of(runs_dir, named))
        exact.append(PlannedRun(run.run_id, run.combination, run.seed, run_file))
    return exact


def refuse_changes(runs: Iterable[PlannedRun], place: SweepDirectory) -> None:
    """Refuses settings with which a run of this sweep was not begun: its results would be of neither."""
    for run in runs:
        directory = RunDirectory(place.runs / run.run_id)
        if not directory.config.is_file():
            continue
        stored = stored_settings(directory, allow=names_given_by(run.run_file))
        for path, old, new in changed_keys(stored, run.run_file):
            raise SettingsError(
                f"{path} changed {old} -> {new} since run {run.run_id} of the sweep in {place.path} began. Set it "
                f"back, or begin another sweep with --name",
                code="E0207",
            )
