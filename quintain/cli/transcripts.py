"""`quintain transcripts`: the conversations of a run, on the terminal or as files for people."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from quintain.cli.checkpoints import RunsDir
from quintain.errors import RunDirectoryError
from quintain.services.files import atomic
from quintain.services.files.run_directory import RunDirectory
from quintain.services.files.run_names import resolve_run
from quintain.text.archive import read_conversations
from quintain.text.sampling import transcript

_FILE = re.compile(r"(?:train|test)-[0-9]{6,}\.jsonl")


def transcripts(
    run: Annotated[str, typer.Argument(help="The run: its id, a unique prefix of it, latest, or a path.")],
    iteration: Annotated[int | None, typer.Option(min=0, help="Only this iteration.")] = None,
    split: Annotated[str | None, typer.Option(help="Only train or test.")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="Only this conversation of each iteration.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many conversations.")] = 20,
    write: Annotated[bool, typer.Option("--write", help="Write text files below transcripts/ of the run.")] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Shows the conversations of a text run, with rewards and decisions."""
    directory = RunDirectory.open_existing(resolve_run(runs_dir, run))
    found = []
    files = [path for path in (directory.path / "rollouts").glob("*.jsonl") if _FILE.fullmatch(path.name)]
    # By iteration, training before tests, as they happened.
    for path in sorted(files, key=lambda each: (int(each.stem.partition("-")[2]), each.stem.startswith("test"))):
        name, _, number = path.stem.partition("-")
        if split in (None, name) and iteration in (None, int(number)):
            found.append((path.stem, read_conversations(path)))
    if not found:
        raise RunDirectoryError(
            f"{directory.shown} has no conversations of this kind; only text trainers write them", code="E0303"
        )
    shown = 0
    for stem, talks in found:
        chosen = [talks[each] for each in sorted(talks) if index in (None, each)]
        lines = [line for talk in chosen for line in (*transcript(talk), "")]
        if write:
            target = directory.folder("transcripts") / f"{stem}.txt"
            atomic.replace_file(target, "\n".join(lines).encode("utf-8", "backslashreplace"))
            typer.echo(f"{target}: {len(chosen)} conversations")
            continue
        for talk in chosen:
            if shown == limit:
                typer.echo("... more: --limit, --iteration, --split, --index, or --write for all as files")
                return
            typer.echo("\n".join((*transcript(talk), "")))
            shown += 1
