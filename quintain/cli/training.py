"""Trains a run that was started or resumed, and reports how it ended."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from quintain.cli.requests import ResumeRequest, TrainRequest
from quintain.runs.launch import Launched
from quintain.runs.ranks.losses import train_through_losses
from quintain.services.reporting.crash_reports import crash_reports

if TYPE_CHECKING:
    from quintain.runs.ranks.on_ray import RayRun
    from quintain.services.reporting.writers import RunSummary
    from quintain.settings.tree import RunFile
    from quintain.typing import Keywords


def output(is_json: bool, is_quiet: bool) -> Keywords:
    """Returns the destinations of progress."""
    # With --json, standard output belongs to the result; progress goes beside it.
    return {"stream": sys.stderr if is_json else None, "quiet": is_quiet}


def train_launched(launched: Launched, request: TrainRequest | ResumeRequest) -> None:
    """Trains the prepared run, and reports how it ended."""
    directory = launched.directory
    with crash_reports(directory.write_crash):
        launched, summary = train_through_losses(launched, **output(request.is_json, request.is_quiet))
    run = launched.run
    digest = None if run.last is None else run.last.digest
    _report(request, directory.run_id, directory.shown, summary, digest, run.exit_code)


def start_on_ray(settings: RunFile, request: TrainRequest, place: Keywords) -> None:
    """Trains a new run whose ranks Ray Train runs, and reports how it ended."""
    from quintain.runs.ranks.on_ray import new_run

    _train_on_ray(new_run(settings, **place), request)


def resume_on_ray(request: TrainRequest | ResumeRequest, run: str, run_file: RunFile | None) -> bool:
    """Resumes a run if Ray Train runs its ranks, and reports how it ended; returns False otherwise."""
    from quintain.runs.ranks.on_ray import old_run, resumes_on_ray

    runs_dir, overrides, allow = request.runs_dir, request.overrides, request.allow
    is_on_ray = resumes_on_ray(runs_dir, run, overrides, allow, run_file)
    if is_on_ray:
        _train_on_ray(old_run(runs_dir, run, overrides, allow=allow, run_file=run_file), request)
    return is_on_ray


def _train_on_ray(run: RayRun, request: TrainRequest | ResumeRequest) -> None:
    from quintain.runs.ranks.on_ray import train_on_ray

    end = train_on_ray(run, **output(request.is_json, request.is_quiet))
    _report(request, run.directory.name, run.shown, end.summary, end.digest, end.exit_code)


def _report(
    request: TrainRequest | ResumeRequest,
    run_id: str,
    shown: Path,
    summary: RunSummary,
    digest: str | None,
    exit_code: int,
) -> None:
    if request.is_json:
        about = {"run": run_id, "directory": str(shown), **asdict(summary)}
        typer.echo(json.dumps({**about, "digest": digest}))
    if exit_code:
        raise typer.Exit(exit_code)
