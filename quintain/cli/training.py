"""Trains a run that was started or resumed, and reports how it ended."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from quintain.cli.requests import ResumeRequest, TrainRequest
from quintain.runs.launch import Launched
from quintain.runs.ranks.losses import train_through_losses
from quintain.services.reporting.crash_reports import crash_reports

if TYPE_CHECKING:
    from quintain.typing import Keywords


def output(is_json: bool, is_quiet: bool) -> Keywords:
    """Returns the destinations of progress."""
    # With --json, standard output belongs to the result; progress goes beside it.
    return {"stream": sys.stderr if is_json else None, "quiet": is_quiet}


def train_launched(launched: Launched, request: TrainRequest | ResumeRequest) -> None:
    """Trains the prepared run, and reports how it ended."""
    directory, trainer = launched.directory, launched.trainer
    with crash_reports(directory.write_crash):
        if trainer.is_finished:
            progress = trainer.progress
            is_in_steps = progress.budget.env_steps is not None
            done = f"{progress.env_steps if is_in_steps else progress.updates} of {progress.budget} are done"
            longer = f"quintain resume {directory.run_id} {'total_timesteps' if is_in_steps else 'budget.updates'}=N"
            launched.run.writer.note(f"nothing left to do: {done}. Train for longer with: {longer}")
        launched, summary = train_through_losses(launched, **output(request.is_json, request.is_quiet))
    run = launched.run
    if request.is_json:
        about = {"run": directory.run_id, "directory": str(directory.shown), **asdict(summary)}
        typer.echo(json.dumps({**about, "digest": None if run.last is None else run.last.digest}))
    if run.exit_code:
        raise typer.Exit(run.exit_code)
