"""Crash reports, and the conversion of any exception that ends a run to an error with an exit code."""

from __future__ import annotations

import errno
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quintain.errors import QuintainError, ResourceError
from quintain.services.reporting.redaction import redact
from quintain.services.user_code import as_part_error

_RESOURCE_ERRORS = {
    errno.ENOSPC: ("E0801", "Free space and run it again"),
    errno.EDQUOT: ("E0801", "Free space and run it again"),
    errno.EMFILE: ("E0805", "Raise the limit with ulimit -n"),
    errno.ENFILE: ("E0805", "Close other programs"),
}


@contextmanager
def crash_reports(write: Callable[[str], Path]) -> Iterator[None]:
    """Writes the traceback of an exception that leaves the block, so that `report` can name the file.

    A refusal needs none: its message names the mistake.
    """
    try:
        yield
    except Exception as error:
        is_refusal = isinstance(error, QuintainError) and error.is_refusal
        if not is_refusal and "crash_report" not in vars(error):
            _write_report(error, write)
        raise


def as_quintain_error(error: Exception) -> QuintainError:
    """Returns the error class, and so the exit code, for an exception."""
    if isinstance(error, QuintainError):
        return _with_report_note(error)
    if isinstance(error, MemoryError):
        return ResourceError(f"out of memory{_detail(error)}. Use fewer lanes or steps", code="E0803")
    if isinstance(error, OSError) and error.errno in _RESOURCE_ERRORS:
        code, action = _RESOURCE_ERRORS[error.errno]
        place = f" in {error.filename}" if error.filename else ""
        return ResourceError(f"{error.strerror}{place}. {action}", code=code)
    path = vars(error).get("crash_report") or _write_report(error, _write_to_temporary_file)
    if (part := as_part_error(error)) is not None:
        vars(part)["crash_report"] = path
        return _with_report_note(part)
    where = f"A crash report is in {path}" if path else "No crash report could be written; use --debug"
    return QuintainError(f"internal error: {type(error).__name__}{_detail(error)}. {where}", code="E0101")


def traceback_of(error: Exception) -> str:
    return redact("".join(traceback.format_exception(error)))


def _write_report(error: Exception, write: Callable[[str], Path]) -> Path | None:
    try:
        path = write(traceback_of(error))
    except (OSError, QuintainError):
        return None  # the error itself is still reported; a full disk may be its very cause
    vars(error)["crash_report"] = path
    return path


def _write_to_temporary_file(text: str) -> Path:
    descriptor, name = tempfile.mkstemp(prefix="quintain-crash-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Path(name)


def _with_report_note(error: QuintainError) -> QuintainError:
    path = vars(error).get("crash_report")
    note = f"note: the traceback is in {path}"
    if path is not None and note not in error.notes:
        error.notes = (*error.notes, note)
    return error


def _detail(error: Exception) -> str:
    first_line = str(error).strip().partition("\n")[0].rstrip(".")
    return f": {redact(first_line)}" if first_line else ""
