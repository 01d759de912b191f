"""The `quintain checkpoints` commands: a run's checkpoints, their validity, and their digests."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from quintain.errors import CheckpointError, CheckpointNotFound
from quintain.services.checkpoints import catalog as checkpoint_catalog
from quintain.services.checkpoints.catalog import CatalogEntry, CheckpointCatalog
from quintain.services.files.run_names import resolve_run, split_checkpoint_suffix
from quintain.services.reporting.digits import grouped, measured

app = typer.Typer(no_args_is_help=True, add_completion=False)

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, unique prefix or path, or latest.")]
Target = Annotated[
    str,
    typer.Argument(metavar="PATH|RUN", help="A checkpoint's path, or a run as RUN, RUN@best or RUN@STEP."),
]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Where run directories are.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_checkpoints(run: Run, runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Lists a run's checkpoints, oldest first: whether each is valid, its step, its return, and which one is best."""
    entries = CheckpointCatalog(resolve_run(runs_dir, run) / checkpoint_catalog.FOLDER).entries()
    _print_entries(entries, as_json=as_json)
    best = next((entry for entry in entries if entry.is_best and entry.scores), None)
    if best is not None and not as_json:
        place = "" if runs_dir == Path("runs") else f" --runs-dir {runs_dir}"
        typer.echo(
            f"best has the highest return of its kind, judged on the {_judged_on(best)} that chose it; expect a little "
            f"less. Play others with: quintain eval {run}@best{place} --episodes 100"
        )


@app.command("verify")
def verify_checkpoints(target: Target, runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Verifies every byte of one checkpoint, or of all of a run; exits with 4 if one is damaged."""
    path = _locate(runs_dir, target)
    entries = _entries_at(path)
    _print_entries(entries, as_json=as_json)
    damaged = [entry.path for entry in entries if not entry.valid]
    if damaged and as_json:
        # The list already says what is wrong, and standard output stays one JSON document.
        raise typer.Exit(CheckpointError.exit_code)
    if len(damaged) == 1:
        checkpoint_catalog.verify(damaged[0])
    if damaged:
        names = ", ".join(path.name for path in damaged)
        message = f"{len(damaged)} of {len(entries)} checkpoints in {path} are damaged: {names}"
        raise CheckpointError(message, code="E0401")


@app.command("digest")
def digest_checkpoint(target: Target, runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Prints one SHA-256 over the training state; equal states have equal digests."""
    path = checkpoint_catalog.resolve(_locate(runs_dir, target), notify=_say)
    digest = checkpoint_catalog.digest(path)
    typer.echo(json.dumps({"path": str(path), "digest": digest}) if as_json else digest)


def _locate(runs_dir: Path, target: str) -> Path:
    path = Path(target)
    is_run = "/" not in target and (runs_dir / target).exists()
    if path.exists() and not is_run:
        return path
    run, which = split_checkpoint_suffix(target)
    if "/" in run and not Path(run).exists():
        raise CheckpointNotFound(f"no checkpoint at {target}. Choose one from: quintain checkpoints list RUN")
    directory = resolve_run(runs_dir, run)
    if which is None:
        return directory
    return CheckpointCatalog(directory / checkpoint_catalog.FOLDER).find(which, notify=_say).path


def _entries_at(path: Path) -> list[CatalogEntry]:
    for folder in (path / checkpoint_catalog.FOLDER, path.resolve()):
        if entries := CheckpointCatalog(folder).entries():
            return entries
    return [checkpoint_catalog.describe(checkpoint_catalog.resolve(path))]


def _print_entries(entries: list[CatalogEntry], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "path": str(entry.path),
                "step": entry.step,
                "valid": entry.valid,
                "reason": entry.reason,
                "is_best": entry.is_best,
                "scores": [asdict(score) for score in entry.scores],
            }
            for entry in entries
        ]
        typer.echo(json.dumps(rows))
        return
    for entry in entries:
        means = ", ".join(
            f"{score.behavior + ' ' if len(entry.scores) > 1 else ''}{measured(score.mean)}" for score in entry.scores
        )
        judged = f"return {means} over {_judged_on(entry)}" if means else ""
        about = entry.reason or f"step {grouped(entry.step):>11}   {judged:48} {'best' if entry.is_best else ''}"
        typer.echo(f"{'ok' if entry.valid else 'damaged':8} {entry.path.name:24} {about}".rstrip())


def _judged_on(entry: CatalogEntry) -> str:
    first = entry.scores[0]
    return f"{first.episodes} {first.kind} {'episode' if first.episodes == 1 else 'episodes'}"


def _say(text: str) -> None:
    typer.echo(text, err=True)
