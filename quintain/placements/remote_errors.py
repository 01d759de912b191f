"""Errors of another process, as words on the way here, and as what is raised here: same class, code and exit code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintain.errors import QuintainError


class RemoteTraceback(Exception):
    """Carries the traceback of another process as the cause of what is raised here."""


def words_of(error: QuintainError, traceback: str) -> dict[str, Any]:
    """Returns what to tell of an error, as JSON."""
    return {
        "code": error.code,
        "exit_code": error.exit_code,
        "message": error.message,
        "notes": list(error.notes),
        "traceback": traceback,
    }


def error_from(words: Mapping[str, Any], prefix: str = "") -> QuintainError:
    """Makes the error that another process told of, with its own traceback as the cause."""
    by_exit_code = {cls.exit_code: cls for cls in reversed(QuintainError.__subclasses__())}
    kind = by_exit_code.get(words["exit_code"], QuintainError)
    error = kind(f"{prefix}{words['message']}", code=str(words["code"]), notes=[str(note) for note in words["notes"]])
    error.__cause__ = RemoteTraceback(words["traceback"])
    return error
