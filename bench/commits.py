"""Names the version of this project that is measured, by the newest commit that changed the code in question."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNKNOWN = "unknown"


def measured(*paths: str) -> str:
    """Returns the newest commit that changed these paths, marked where they have changes that are not committed.

    It is not the commit of the whole checkout: recording results makes commits, too, and they leave the code as it was.
    """
    commit = git("log", "-1", "--format=%h", "--", *paths)
    return f"{commit}+changes" if commit and has_changes(*paths) else commit or UNKNOWN


def not_in_history(names: Iterable[str]) -> list[str]:
    """Returns the commits among these that the history of this checkout does not have; none where it was cut off."""
    if git("rev-parse", "--is-shallow-repository") != "false":
        return []
    known = set(git("log", "--format=%h", "--abbrev=7").split())
    short = dict.fromkeys(name.removesuffix("+changes")[:7] for name in names if name != UNKNOWN)
    return [name for name in short if name not in known]


def note_on_lost(names: Iterable[str]) -> str:
    """Says which commits that were measured cannot be looked at, because the history was rewritten since."""
    lost = not_in_history(names)
    if not lost:
        return ""
    return (
        f" Not in the history of this repository, which was rewritten after they were measured: {', '.join(lost)}. "
        "Their code cannot be looked at."
    )


def has_changes(*paths: str) -> bool:
    """Says whether something under these paths is not committed."""
    return git("status", "--porcelain", "--", *paths) != ""


def git(*words: str) -> str:
    """Returns what git says of this checkout; nothing where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
