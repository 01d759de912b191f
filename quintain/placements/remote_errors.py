"""Serializes errors of other processes, so that the same class, code and exit code are raised here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintain.errors import QuintainError


class RemoteTraceback(Exception):
    """The traceback of another process, as the cause of an error raised here."""


def error_to_json(error: QuintainError, traceback: str) -> dict[str, Any]:
    """Serializes an error."""
    return {
        "code": error.code,
        "exit_code": error.exit_code,
        "message": error.message,
        "notes": list(error.notes),
        "traceback": traceback,
    }


def error_from_json(words: Mapping[str, Any], prefix: str = "") -> QuintainError:
    """Deserializes an error, with the remote traceback as its cause."""
    by_exit_code = {cls.exit_code: cls for cls in reversed(QuintainError.__subclasses__())}
    kind = by_exit_code.get(words["exit_code"], QuintainError)
    error = kind(f"{prefix}{words['message']}", code=str(words["code"]), notes=[str(note) for note in words["notes"]])
    error.__cause__ = RemoteTraceback(words["traceback"])
    return error
