"""`quintain transcripts`: the conversations of a run, on the terminal or as files for people."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

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
    split: Annotated[Literal["train", "test"] | None, typer.Option(help="Only conversations of this kind.")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="Only this conversation of each iteration.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many conversations.")] = 20,
    write: Annotated[bool, typer.Option("--write", help="Write text files below transcripts/ of the run.")] = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Shows the conversations of a text run, with rewards and decisions."""
    directory = RunDirectory.open_existing(resolve_run(runs_dir, run))
    # By iteration, training before tests, as they happened.
    files = sorted(
        (int(path.stem.partition("-")[2]), path.stem.startswith("test"), path)
        for path in (directory.path / "rollouts").glob("*.jsonl")
        if _FILE.fullmatch(path.name)
    )
    found = [
        (path.stem, chosen)
        for number, is_test, path in files
        if split in (None, "test" if is_test else "train") and iteration in (None, number)
        if (chosen := [talk for each, talk in sorted(read_conversations(path).items()) if index in (None, each)])
    ]
    if not found:
        there = [
            f"{name} of iteration {', '.join(numbers)}"
            for name, is_kind in (("train", False), ("test", True))
            if (numbers := [str(number) for number, is_test, _ in files if is_test is is_kind])
        ]
        has = "no conversations yet: a run of text models writes them, and the event sample_conversations"
        has = f"none of these conversations; it has {' and '.join(there)}" if there else has
        raise RunDirectoryError(f"{directory.shown} has {has}", code="E0303")
    shown = 0
    for stem, chosen in found:
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
