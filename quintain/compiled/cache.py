"""Compiles functions with numba, and keeps the machine code between starts in a folder of the user's.

The folder is `NUMBA_CACHE_DIR` where that is set, else `quintain/compiled` among the user's caches. Its files are code
that will be run, so a folder that others may write is not used. It can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_config: Any = numba.config


# Sums may be fused and reordered, which is what lets them use whole vectors. NaN and infinity keep their meaning: the
# run must see them.
_FAST = {"arcp", "contract", "nsz", "reassoc"}


def kernel(function: Function) -> Function:
    """Compiles a function that Python calls; it is compiled at its first call, or loaded where it was kept."""
    return _kept(function, fastmath=False)


def kernel_part(function: Function) -> Function:
    """Compiles a function that kernels of the same folder call; it becomes a part of each of them."""
    # Without fast-math the compiler neither reorders nor fuses operations: numbers are those of the source as written.
    return _part(function, fastmath=False)


def fast_kernel(function: Function) -> Function:
    """Compiles a function that Python calls, in which the order of sums may change."""
    return _kept(function, fastmath=_FAST)


def fast_part(function: Function) -> Function:
    """Compiles a function that kernels of the same folder call, in which the order of sums may change."""
    return _part(function, fastmath=_FAST)


def _part(function: Function, *, fastmath: bool | set[str]) -> Function:
    # Always inlined. A part that stands by itself would exist twice, compiled alone and compiled beside the kernel that
    # calls it, with sums in other orders: a start that compiles would link the first, a start that loads the second.
    part = numba.njit(function, nogil=True, error_model="numpy", fastmath=fastmath, forceinline=True)
    return cast(Function, part)


def _kept(function: Function, *, fastmath: bool | set[str]) -> Function:
    folder = kept_in()
    if folder is None:
        return cast(Function, numba.njit(function, nogil=True, error_model="numpy", fastmath=fastmath))
    users_choice = _config.CACHE_DIR
    # Numba notices a change of the file that a kernel stands in, but not of the parts that it calls.
    _config.CACHE_DIR = str(folder / _source_digest(Path(function.__code__.co_filename).parent))
    try:
        return cast(Function, numba.njit(function, cache=True, nogil=True, error_model="numpy", fastmath=fastmath))
    finally:
        _config.CACHE_DIR = users_choice


@cache
def kept_in() -> Path | None:
    """Returns the folder in which machine code is kept, made if necessary; None where there can be none."""
    chosen = _config.CACHE_DIR
    folder = Path(chosen) if chosen else user_cache_folder() / "quintain" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_ours = bool(chosen) or not _others_may_write(folder)
    except OSError:
        return None
    return folder if is_ours and os.access(folder, os.W_OK | os.X_OK) else None


def is_kept(function: Callable[..., Any]) -> bool:
    """Says whether an earlier start left machine code of this kernel."""
    plain = getattr(function, "py_func", function)
    folder = kept_in()
    if folder is None:
        return False
    place = folder / _source_digest(Path(plain.__code__.co_filename).parent)
    return any(place.rglob(f"*.{plain.__name__}-*.nbi"))


def cache_note() -> str:
    """Says that code is compiled at every start, if it is."""
    if kept_in() is not None:
        return ""
    folder = _config.CACHE_DIR or user_cache_folder() / "quintain" / "compiled"
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
def _source_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for source in sorted({*folder.glob("*.py"), *Path(__file__).parent.glob("*.py")}):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]
