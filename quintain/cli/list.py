"""The `quintain list` command: all registered names for run files. Imports no torch."""

from __future__ import annotations

import json as json_text
from typing import Annotated

import typer

from quintain.core import registry
from quintain.services.reporting.printable import escape_control_characters


def list_registered(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="One of: " + ", ".join(registry.KINDS))] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of {kind, name, description}.")] = False,
) -> None:
    """Lists all registered names that a run file can use."""
    kinds = list(registry.KINDS) if kind is None else [kind]
    found = {each: registry.descriptions(each) for each in kinds}
    if json:
        rows = [
            {"kind": each, "name": name, "description": line}
            for each, lines in found.items()
            for name, line in lines.items()
        ]
        typer.echo(json_text.dumps(rows, indent=2))
        return
    width = max((len(name) for lines in found.values() for name in lines), default=0)
    for each, lines in found.items():
        typer.echo(each)
        for name, line in lines.items():
            typer.echo(escape_control_characters(f"  {name:<{width}}  {line}"))
