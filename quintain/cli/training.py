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
from quintain.runs.ranks.on_ray import RayEnd, RayRun, train_on_ray
from quintain.services.reporting.crash_reports import crash_reports

if TYPE_CHECKING:
    from quintain.typing import Keywords


def output(is_json: bool, is_quiet: bool) -> Keywords:
    """Returns the destinations of progress."""
    # With --json, standard output belongs to the result; progress goes beside it.
    return {"stream": sys.stderr if is_json else None, "quiet": is_quiet}


def train_launched(launched: Launched, request: TrainRequest | ResumeRequest) -> None:
    """Trains the prepared run, and reports how it ended."""
    directory = launched.directory
    with crash_reports(directory.write_crash):
        launched.note_if_finished()
        launched, summary = train_through_losses(launched, **output(request.is_json, request.is_quiet))
    run = launched.run
    digest = None if run.last is None else run.last.digest
    _report(directory.run_id, directory.shown, RayEnd(summary, digest, run.exit_code), request)


def train_ranks_on_ray(run: RayRun, request: TrainRequest | ResumeRequest) -> None:
    """Trains a run whose ranks Ray Train runs, and reports how it ended."""
    _report(run.directory.name, run.shown, train_on_ray(run, **output(request.is_json, request.is_quiet)), request)


def _report(run_id: str, shown: Path, end: RayEnd, request: TrainRequest | ResumeRequest) -> None:
    if request.is_json:
        about = {"run": run_id, "directory": str(shown), **asdict(end.summary)}
        typer.echo(json.dumps({**about, "digest": end.digest}))
    if end.exit_code:
        raise typer.Exit(end.exit_code)
