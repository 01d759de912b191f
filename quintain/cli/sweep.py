"""The `quintain sweep` commands: runs a grid of settings and seeds, and shows its summary."""

from __future__ import annotations

import json as json_text
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from quintain.behaviors.translate import CommandLine, translate
from quintain.behaviors.yaml_import import check_configuration, env_path_of, is_mlagents_file
from quintain.cli.requests import Json, Quiet, RunsDir, usage_error
from quintain.cli.words import split_words
from quintain.runs.sweeps.directory import SweepDirectory
from quintain.runs.sweeps.grid import Grid
from quintain.runs.sweeps.start import DEFAULT_SWEEPS_DIR, run_sweep
from quintain.runs.sweeps.table import summarize
from quintain.services.files.run_names import check_run_id
from quintain.services.reporting.printable import escape_control_characters
from quintain.settings.yaml_text import read_file

SweepsDir = Annotated[Path, typer.Option("--sweeps-dir", help="Where the directories of sweeps are.")]


class RunsByDefault(TyperGroup):
    """Takes `sweep GRID` for `sweep run GRID`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args.insert(0, "run")
        return super().parse_args(ctx, args)


_HELP = "Trains a grid of settings and seeds: quintain sweep GRID, short for quintain sweep run GRID."
app = typer.Typer(cls=RunsByDefault, help=_HELP, no_args_is_help=True, add_completion=False)


@app.command()
def run(
    words: Annotated[
        list[str], typer.Argument(metavar="GRID|KEY=VALUE", help="A grid file, and settings of all runs to change.")
    ],
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Runs at the same time.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the sweep; that of the file if left out.")] = None,
    sweeps_dir: SweepsDir = DEFAULT_SWEEPS_DIR,
    runs_dir: RunsDir = Path("runs"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Trains every combination of a grid with every seed; run again, it continues where it was stopped.

    For example: quintain sweep grid.yaml --jobs 4
    """
    names, overrides = split_words(words)
    if len(names) != 1:
        found = " ".join(names) or "nothing"
        raise usage_error(f"expected one grid file and found {found!r}. Write for example: quintain sweep grid.yaml")
    path = Path(names[0])
    grid = Grid.load(path, overrides)
    base, run_file_path = None, grid.run_file_path()
    if run_file_path is not None and is_mlagents_file(document := read_file(run_file_path)):
        # A configuration without a seed draws one, and a sweep has seeds of its own.
        typed = CommandLine(seed=None if grid.seeds is None else grid.seeds[0])
        base = translate(check_configuration(document, env_path_of(document)), typed).run_file
    place = SweepDirectory(sweeps_dir / check_run_id(name or path.stem))
    stream = None if quiet else sys.stderr if json else sys.stdout
    swept = run_sweep(grid, place, jobs=jobs, base=base, runs_dir=runs_dir, stream=stream)
    if json:
        typer.echo(json_text.dumps(swept.table.to_json()))
    elif not quiet:
        _print_lines(swept.table.to_text())
        typer.echo(f"summary in {place.path}/summary.md, .csv and .json; single runs in {place.path}/runs.csv")
    if swept.signals.received is not None and not quiet:
        options = "".join(
            f" {option} {value}"
            for option, value, usual in (("--name", name, None), ("--sweeps-dir", sweeps_dir, DEFAULT_SWEEPS_DIR))
            if value != usual
        )
        typer.echo(f"stopped; continue with: quintain sweep {path}{options}", err=True)
    if swept.exit_code:
        raise typer.Exit(swept.exit_code)


@app.command()
def show(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Name of a sweep, or its directory.")],
    sweeps_dir: SweepsDir = DEFAULT_SWEEPS_DIR,
    form: Annotated[
        Literal["text", "md", "csv", "runs"], typer.Option("--format", help="A table, Markdown, CSV, or CSV by run.")
    ] = "text",
    json: Json = False,
) -> None:
    """Shows the summary of a sweep, finished or not: mean over seeds with its 95 % interval, best first."""
    table = summarize(SweepDirectory.find(sweeps_dir, sweep))
    if json:
        typer.echo(json_text.dumps(table.to_json()))
        return
    forms = {"text": table.to_text, "md": table.to_markdown, "csv": table.to_csv, "runs": table.runs_csv}
    _print_lines(forms[form]().rstrip("\n"))


def _print_lines(text: str) -> None:
    for line in text.split("\n"):
        typer.echo(escape_control_characters(line))
