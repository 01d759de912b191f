"""Calling what a user wrote: if it fails, the error names the part, what it raised and where, in one line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quintain.errors import QuintainError

ANYTHING = (Exception, SystemExit)
"""What a user's code may raise and the process survives: a simulator may call sys.exit()."""


@contextmanager
def named_failure(what: str, error_class: type[QuintainError], code: str) -> Iterator[None]:
    """Turns what a part of the user's raises into an error that names the part; what is ours passes unchanged."""
    try:
        yield
    except (QuintainError, MemoryError):
        raise
    except Exception as error:
        message = f"{what}: {in_one_line(error)}, raised in {raised_at(error)}. Mend it and run again"
        raise error_class(message, code=code) from error


def in_one_line(error: BaseException) -> str:
    """Names an exception and the first line of what it says."""
    try:
        first = str(error).strip().partition("\n")[0]
    except Exception:  # what the user's class says of itself is the user's code too
        first = ""
    return f"{type(error).__name__}: {first}"[:400] if first else type(error).__name__


def raised_at(error: BaseException) -> str:
    """Returns file and line of the innermost frame, such as `gusts.py:12`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
