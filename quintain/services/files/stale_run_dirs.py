"""Removes temporaries that killed processes left in a folder of runs."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from quintain.services.files import atomic

OLD_SECONDS = 3600.0
"""Age from which a temporary is stale: making a directory takes milliseconds."""

_TEMPORARY = re.compile(rf"{re.escape(atomic.TEMPORARY_PREFIX)}.+-\d+-[0-9a-f]{{8}}")


def sweep(runs_dir: Path, *, may_hold: frozenset[str]) -> None:
    """Removes stale temporaries of runs and probes; a directory with other entries than `may_hold` is left alone.

    Call it just after writing to the folder: its time stamp is then the current time of the file system's clock, which
    machines that share the folder share.
    """
    now = os.stat(runs_dir).st_mtime
    with os.scandir(runs_dir) as entries:
        found = [entry for entry in entries if _TEMPORARY.fullmatch(entry.name)]
    for entry in found:
        # Whatever cannot be removed costs a few bytes, and is tried again with the next run.
        with suppress(OSError):
            if now - entry.stat(follow_symlinks=False).st_mtime < OLD_SECONDS:
                continue
            if entry.is_dir(follow_symlinks=False):
                _remove_directory(Path(entry.path), may_hold)
            elif entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)


def _remove_directory(path: Path, may_hold: frozenset[str]) -> None:
    names = set(os.listdir(path))
    if not names <= may_hold:
        return
    for name in sorted(names):
        # Not the whole tree: a folder below that is not empty never came from the making of a run.
        below = path / name
        if below.is_dir() and not below.is_symlink():
            os.rmdir(below)
        else:
            os.unlink(below)
    os.rmdir(path)
