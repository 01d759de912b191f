"""Calls user code: on failure, the error names the part, the exception and its place, in one line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quintain.errors import QuintainError

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
    """Returns file and line of the innermost frame, such as `gusts.py:12`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
