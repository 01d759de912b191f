"""Calls user code: on failure, the error names the part, the exception and its place, in one line."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quintain.core import trust
from quintain.errors import PartError, QuintainError
from quintain.services.reporting.redaction import redact

_OURS = Path(__file__).parents[1]
_LIBRARIES = tuple({Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")})

ANYTHING = (Exception, SystemExit)
"""Exceptions of user code that the process survives: a simulator may call sys.exit()."""


@contextmanager
def named_failure(what: str, error_class: type[QuintainError], code: str) -> Iterator[None]:
    """Converts exceptions of user code to an error that names the part; our own errors pass unchanged."""
    try:
        yield
    except (QuintainError, MemoryError):
        raise
    except Exception as error:
        message = f"{what}: {in_one_line(error)}, raised in {raised_at(error)}. Mend it and run again"
        raise error_class(message, code=code) from error


def in_one_line(error: BaseException) -> str:
    """Returns the exception's name and the first line of its message."""
    try:
        first = str(error).strip().partition("\n")[0]
    except Exception:  # what the user's class says of itself is the user's code too
        first = ""
    return f"{type(error).__name__}: {first}"[:400] if first else type(error).__name__


def raised_at(error: BaseException) -> str:
    """Returns file and line of the user's innermost frame, such as `gusts.py:12`; of any frame if there is none."""
    place = user_place(error)
    if place is None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = Path(frame.filename), frame.lineno or 0
    return f"{place[0].name}:{place[1]}"


def as_part_error(error: BaseException) -> PartError | None:
    """Returns the error that names the user's file and line, if code of the user's was running; None otherwise."""
    place = user_place(error)
    if place is None:
        return None
    path, line = place
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return PartError(f"{shown}:{line}: {redact(in_one_line(error))}, raised by code of yours. Mend it and run again")


def user_place(error: BaseException) -> tuple[Path, int] | None:
    """Returns file and line of the innermost frame that is neither ours nor a library's, among those that we called.

    A library is what is installed or comes with Python, unless settings name a part of it.
    """
    found, is_below_us = None, False
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        is_library = _is_of_library(path)
        if path.is_relative_to(_OURS):
            is_below_us = True
        elif is_below_us and (not is_library or str(frame.f_globals.get("__name__")) in trust.imported):
            found = (path, line)
    if found is None and is_below_us and isinstance(error, SyntaxError) and error.filename and error.lineno:
        # Of a module that cannot be imported there is no frame.
        path = Path(error.filename)
        found = None if path.is_relative_to(_OURS) or _is_of_library(path) else (path, error.lineno)
    return found


def _is_of_library(path: Path) -> bool:
    return not path.is_absolute() or any(path.is_relative_to(folder) for folder in _LIBRARIES)
