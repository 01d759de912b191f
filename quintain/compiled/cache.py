"""Where machine code is kept between starts: in a folder of the user's.

The folder is `NUMBA_CACHE_DIR` where that is set, else `quintain/compiled` among the user's caches. Its files are code
that will be run, so a folder that others may write is not used. It can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import sys
from functools import cache
from pathlib import Path


@cache
def kept_in() -> Path | None:
    """Returns the folder in which machine code is kept, made if necessary; None where there can be none."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(chosen) if chosen else user_cache_folder() / "quintain" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_ours = bool(chosen) or not _others_may_write(folder)
    except OSError:
        return None
    return folder if is_ours and os.access(folder, os.W_OK | os.X_OK) else None


def cache_note() -> str:
    """Says that code is compiled at every start, if it is."""
    if kept_in() is not None:
        return ""
    folder = os.environ.get("NUMBA_CACHE_DIR") or user_cache_folder() / "quintain" / "compiled"
    return (
        f"note: compiled code cannot be kept in {folder}, so every start compiles it again. Set NUMBA_CACHE_DIR to a "
        f"folder that only you can write"
    )


def user_cache_folder() -> Path:
    """Returns where this system's programs keep what they can make again."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _others_may_write(folder: Path) -> bool:
    if sys.platform == "win32":
        return False
    about = folder.stat()
    return about.st_uid != os.geteuid() or bool(about.st_mode & 0o022)


@cache
def source_digest(folder: Path) -> str:
    """Names all that kernels of a folder are made from: a kernel does not know the parts that it calls."""
    digest = hashlib.sha256()
    for source in sorted({*folder.glob("*.py"), *Path(__file__).parent.glob("*.py")}):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]
