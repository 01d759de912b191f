"""The command that exports a trained policy to a file that runs without quintain."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from quintain.cli.requests import Allow, Json, RunsDir


def export_run(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="An id, a unique prefix, `latest`, or a path; RUN@best too.")
    ],
    format: Annotated[Literal["onnx"], typer.Option("--format", help="What kind of file to write.")] = "onnx",
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write it; unless given, the run's export folder.")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    allow: Allow = None,
    json: Json = False,
) -> None:
    """Exports a trained policy to ONNX, with its normaliser and action transform, and compares both."""
    from quintain.runs import results as stored

    written, checkpoint = stored.export(runs_dir, run, out=out, allow=tuple(allow or ()))
    for behavior, each in written.items():
        if json:
            about = {
                "run": checkpoint.parents[1].name,
                "checkpoint": checkpoint.name,
                "format": format,
                "model": str(each.model),
                "contract": str(each.contract),
                "largest_difference": each.largest_difference,
                **({"behavior": behavior} if behavior else {}),
            }
            typer.echo(json_module.dumps(about))
        else:
            typer.echo(
                f"wrote {each.model} and {each.contract.name} · checkpoint {checkpoint.name} of "
                f"{checkpoint.parents[1].name} · differs from the policy by at most {each.largest_difference:.1e}"
            )
