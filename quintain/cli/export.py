"""The command that turns a trained policy into a file that runs without us."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from quintain.cli.train import Allow, Json, RunsDir


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
    """Writes a trained policy as ONNX, with its normaliser and action transform, and compares both."""
    from quintain import launch

    exported, checkpoint = launch.export(runs_dir, run, out=out, allow=tuple(allow or ()))
    if json:
        about = {
            "run": checkpoint.parents[1].name,
            "checkpoint": checkpoint.name,
            "format": format,
            "model": str(exported.model),
            "contract": str(exported.contract),
            "largest_difference": exported.largest_difference,
        }
        typer.echo(json_module.dumps(about))
        return
    typer.echo(
        f"wrote {exported.model} and {exported.contract.name} · checkpoint {checkpoint.name} of "
        f"{checkpoint.parents[1].name} · differs from the policy by at most {exported.largest_difference:.1e}"
    )
