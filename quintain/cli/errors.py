"""Turns whatever escapes a command into lines for the user and an exit code. The only place that does."""

from __future__ import annotations

import difflib
import errno
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from quintain.cli.words import USAGE_CODE
from quintain.errors import QuintainError, ResourceError, SettingsError
from quintain.services.printable import escape_control_characters
from quintain.services.redaction import redact

EXIT_CODES = {
    0: "the target is reached, or nothing is left to do",
    1: "internal error; a crash report is written",
    2: "usage or settings are wrong; no run directory is touched",
    3: "run directory: in use, exists, not found, not writable",
    4: "checkpoint unusable: damaged, foreign, unsafe, wrong shapes",
    5: "environment: cannot be created, or broke too often",
    6: "numbers: too many that are not finite",
    7: "external service: refused, failed, or out of retries",
    8: "resources: disk, memory, file descriptors",
    130: "stopped by Ctrl-C after a checkpoint (143: by SIGTERM)",
}

# typer does not name this class in public; it is the parent of the one it does.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_RESOURCE_ERRORS = {
    errno.ENOSPC: ("E0801", "Free space and run it again"),
    errno.EDQUOT: ("E0801", "Free space and run it again"),
    errno.EMFILE: ("E0805", "Raise the limit with ulimit -n"),
    errno.ENFILE: ("E0805", "Close other programs"),
}


@contextmanager
def crash_reports(write: Callable[[str], Path]) -> Iterator[None]:
    """Writes the traceback of what escapes the block, so that `report` can name the file."""
    try:
        yield
    except Exception as error:
        if "crash_report" not in vars(error):
            _write_report(error, write)
        raise


def report(error: Exception, *, is_json: bool, is_debug: bool) -> int:
    """Prints the error for the user and returns the exit code."""
    shown = as_quintain_error(error)
    if is_debug:
        _print_lines(_traceback_of(error).splitlines())
    _print_lines(shown.lines())
    if is_json:
        about = {
            "code": shown.code,
            "message": shown.message,
            "exit_code": shown.exit_code,
            "notes": shown.notes,
        }
        sys.stdout.write(json.dumps({"error": about}) + "\n")
    return shown.exit_code


def as_quintain_error(error: Exception) -> QuintainError:
    """Finds the class, and so the exit code, that the user's table has for this exception."""
    if isinstance(error, QuintainError):
        return _with_report_note(error)
    if isinstance(error, UsageError):
        return SettingsError(_usage_message(error), code=USAGE_CODE)
    if isinstance(error, MemoryError):
        return ResourceError(f"out of memory{_detail(error)}. Use fewer lanes or steps", code="E0803")
    if isinstance(error, OSError) and error.errno in _RESOURCE_ERRORS:
        code, action = _RESOURCE_ERRORS[error.errno]
        place = f" in {error.filename}" if error.filename else ""
        return ResourceError(f"{error.strerror}{place}. {action}", code=code)
    path = vars(error).get("crash_report") or _write_report(error, _write_to_temporary_file)
    where = f"A crash report is in {path}" if path else "No crash report could be written; use --debug"
    return QuintainError(f"internal error: {type(error).__name__}{_detail(error)}. {where}", code="E0101")


def _write_report(error: Exception, write: Callable[[str], Path]) -> Path | None:
    try:
        path = write(_traceback_of(error))
    except (OSError, QuintainError):
        return None  # the error itself is still reported; a full disk may be its very cause
    vars(error)["crash_report"] = path
    return path


def _write_to_temporary_file(text: str) -> Path:
    descriptor, name = tempfile.mkstemp(prefix="quintain-crash-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Path(name)


def _traceback_of(error: Exception) -> str:
    return redact("".join(traceback.format_exception(error)))


def _with_report_note(error: QuintainError) -> QuintainError:
    path = vars(error).get("crash_report")
    note = f"note: the traceback is in {path}"
    if path is not None and note not in error.notes:
        error.notes = (*error.notes, note)
    return error


def _print_lines(lines: list[str]) -> None:
    sys.stderr.write("".join(escape_control_characters(line) + "\n" for line in lines))


def _detail(error: Exception) -> str:
    first_line = str(error).strip().partition("\n")[0].rstrip(".")
    return f": {redact(first_line)}" if first_line else ""


def _usage_message(error: Any) -> str:
    command = error.ctx.command_path if error.ctx is not None else "quintain"
    if type(error).__name__ == "NoArgsIsHelpError":
        message = f"a command is missing; there are {', '.join(error.ctx.command.commands)}"
    elif hasattr(error, "possibilities"):
        message = _unknown_option_message(error.option_name, error.ctx)
    else:
        message = " ".join(error.format_message().split()).rstrip(".")
    ending = "" if message.endswith("?") else "."
    return f"{command}: {message[:1].lower()}{message[1:]}{ending} See {command} --help"


def _unknown_option_message(option: str, context: Any) -> str:
    parameters = context.command.params if context is not None else []
    options = [name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)]
    nearest = difflib.get_close_matches(option, options, n=1)
    if nearest:
        return f"no such option {option}; did you mean {nearest[0]}?"
    if any(parameter.name == "words" for parameter in parameters):
        return f"no such option {option}; settings are written {option.lstrip('-').replace('-', '_')}=VALUE"
    return f"no such option {option}"
