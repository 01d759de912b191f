"""The `quintain validate` command: checks many run files quickly. Imports no torch."""

from __future__ import annotations

import json as json_text
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quintain.behaviors.yaml_import import check_configuration, env_path_of, is_mlagents_file
from quintain.cli.online import is_module, load_file
from quintain.errors import QuintainError, SettingsError
from quintain.services.reporting.printable import escape_control_characters
from quintain.settings.tree import RunFile
from quintain.settings.yaml_text import read_file

if TYPE_CHECKING:
    from quintain.typing import JsonObject


def validate(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|DIR", help="Run files, or folders of them.")],
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Print one JSON object for each file.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list of all files.")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="MODULE:NAME", help="Code that files in a folder may load. Repeatable."),
    ] = None,
) -> None:
    """Validates run files without running them; exits with 2 if any is invalid."""
    rows = _rows(paths, allow or ())
    num_files = num_bad = 0
    listed = []
    for row in rows:
        num_files += 1
        num_bad += not row["ok"]
        if jsonl:
            typer.echo(json_text.dumps(row))
        elif json:
            listed.append(row)
        else:
            for line in row["errors"]:
                typer.echo(escape_control_characters(line))
    if json and not jsonl:
        typer.echo(json_text.dumps(listed))
    elif not jsonl:
        typer.echo(f"{num_files} checked, {num_bad} bad")
    if num_bad:
        raise typer.Exit(SettingsError.exit_code)


def _rows(paths: list[Path], allow: Collection[str]) -> Iterator[JsonObject]:
    for path in paths:
        if path.is_dir():
            # Nobody named the files in a folder one by one, so they may not name code to import.
            for file in _run_files(path):
                yield _row(file, trusted=False, allow=allow)
        else:
            yield _row(path, trusted=True, allow=allow)


def _row(path: Path, *, trusted: bool, allow: Collection[str]) -> JsonObject:
    try:
        if trusted and is_module(path):
            load_file(path)
        elif is_mlagents_file(document := read_file(path)):
            check_configuration(document, env_path_of(document) if trusted else None)
        else:
            RunFile.load(path, trusted=trusted, allow=allow)
    except QuintainError as error:
        return {"file": str(path), "ok": False, "errors": error.lines()}
    return {"file": str(path), "ok": True, "errors": []}


def _run_files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".yml") and path.is_file())
    if not files:
        raise SettingsError(f"{folder}: no file ends in .yaml or .yml; name a run file", code="E0210")
    return files
