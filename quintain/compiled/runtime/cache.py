"""The cache of machine code between starts: a folder of the user's.

The folder is `NUMBA_CACHE_DIR` if set, else `quintain/compiled` in the user's cache directory. Its files are code that
is executed, so a folder or file that another user owns or may write is not used, and neither is a link. It can be
deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

_MAX_BYTES = 64 * 2**20
"""Far more than any kernel needs."""


@cache
def kept_in() -> Path | None:
    """Returns the cache folder, made if necessary; None if there can be none."""
    return None if _why_not_kept() else _folder()


def cache_note() -> str:
    """Returns a note if code is compiled at every start."""
    if kept_in() is not None:
        return ""
    return (
        f"note: compiled code cannot be kept in {_folder()}, which {_why_not_kept()}, so every start compiles it "
        f"again. Set NUMBA_CACHE_DIR to a folder that only you can write"
    )


def user_cache_folder() -> Path:
    """Returns the system's cache directory of the user."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def make_private(folder: Path) -> None:
    """Makes a folder inside the cache, parents included; refuses one that other users can access."""
    if not folder.is_dir():
        # Not mkdir's own `parents`, whose folders have the mode of the umask.
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    if reason := _why_unsafe(folder.lstat(), stat.S_ISDIR):
        raise PermissionError(f"{folder} {reason}")


def read_private(place: Path) -> bytes:
    """Returns a file of the cache; raises OSError unless it is a regular file that only this user can write."""
    # Without waiting: a pipe in the place of the file must not stop the start.
    handle = os.open(place, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        reason = _why_unsafe(about, stat.S_ISREG) or ("is too large" if about.st_size > _MAX_BYTES else "")
        if reason:
            raise PermissionError(f"{place} {reason}")
        return file.read()


def write_private(place: Path, contents: bytes) -> None:
    """Writes a file of the cache atomically."""
    unfinished = place.with_suffix(f".{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(contents)
        unfinished.replace(place)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _folder() -> Path:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    return Path(chosen) if chosen else user_cache_folder() / "quintain" / "compiled"


def _why_not_kept() -> str:
    folder = _folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = _why_unsafe(folder.lstat(), stat.S_ISDIR)
    except OSError as error:
        return f"cannot be used ({error.strerror or error})"
    return reason or ("" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written")


def _why_unsafe(about: os.stat_result, is_right_kind: Callable[[int], bool]) -> str:
    """Returns why code must not be loaded from there; empty if only this user can write it."""
    if stat.S_ISLNK(about.st_mode):
        return "is a link"
    if not is_right_kind(about.st_mode):
        return "is neither a folder nor a plain file"
    if sys.platform == "win32":
        return ""
    if about.st_uid != os.geteuid():
        return "belongs to another user"
    return "can be written by other users" if about.st_mode & 0o022 else ""


@cache
def source_digest(folder: Path) -> str:
    """Returns a digest of a folder's sources: a kernel does not know the functions that it calls."""
    digest = hashlib.sha256()
    for source in sorted({*folder.glob("*.py"), *Path(__file__).parent.glob("*.py")}):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]
