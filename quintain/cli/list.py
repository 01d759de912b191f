"""The `quintain list` command: all registered names for run files. Imports no torch."""

from __future__ import annotations

import json as json_text
import re
from typing import Annotated

import typer

from quintain.core import registry
from quintain.services.reporting.printable import escape_control_characters

_PLURALS = {re.sub("ss$", "sse", re.sub("y$", "ie", kind)) + "s": kind for kind in registry.KINDS}
"""Kinds by what a user may write for several: algorithms, policies, auxiliary_losses."""


def list_registered(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="One of: " + ", ".join(registry.KINDS))] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a list of {kind, name, description}.")] = False,
) -> None:
    """Lists all registered names that a run file can use."""
    kinds = list(registry.KINDS) if kind is None else [_PLURALS.get(kind, kind)]
    found = {each: lines for each in kinds if (lines := registry.descriptions(each)) or kind is not None}
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
