"""The `quintain config` commands: every setting with its origin, and the schema. Imports no torch."""

from __future__ import annotations

import json as json_text
from typing import Annotated

import typer

from quintain.cli.online import load_file
from quintain.cli.requests import usage_error
from quintain.cli.words import FileSource, source_of, split_words
from quintain.services.reporting.printable import escape_control_characters
from quintain.settings.outline import RunTree
from quintain.settings.tree import RunFile

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command()
def show(
    words: Annotated[
        list[str],
        typer.Argument(metavar="FILE|ALGO ENV|KEY=VALUE", help="A run file or two names, and settings to change."),
    ],
    tuned: Annotated[bool, typer.Option("--tuned", help="With the settings that ship for two names.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print settings, origins and notes as one object.")] = False,
) -> None:
    """Shows every setting of a run with its origin."""
    run_file = run_file_of(words, tuned=tuned)
    if json:
        parts = {"settings": run_file.to_dict(), "origins": run_file.origins, "notes": run_file.notes}
        typer.echo(json_text.dumps(parts, indent=2))
        return
    for note in run_file.notes:
        typer.echo(escape_control_characters(note), err=True)
    typer.echo(run_file.to_yaml(), nl=False)


@app.command()
def schema(
    json: Annotated[bool, typer.Option("--json", help="Print an error as JSON too; the schema always is.")] = False,
) -> None:
    """Prints the JSON schema of a run file, for completion and validation in editors."""
    typer.echo(json_text.dumps(RunTree.model_json_schema(), indent=None if json else 2))


def run_file_of(words: list[str], *, tuned: bool = False) -> RunFile:
    """Makes the run file from the words of a command line."""
    names, overrides = split_words(words)
    source = source_of(names)
    if isinstance(source, FileSource):
        if tuned:
            raise usage_error("--tuned goes with two names: quintain config show ppo LunarLander-v3 --tuned")
        return load_file(source.path, *overrides)
    return RunFile.from_names(source.algorithm, source.env, *overrides, tuned=tuned)
