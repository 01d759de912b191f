"""Prints an exception that ends a command as lines for the user, and returns the exit code."""

from __future__ import annotations

import difflib
import json
import sys
from typing import Any, TypeAlias

import typer

from quintain.cli.words import USAGE_CODE
from quintain.errors import SettingsError
from quintain.services.reporting.crash_reports import as_quintain_error, traceback_of
from quintain.services.reporting.printable import escape_control_characters

EXIT_CODES = {
    0: "the target is reached, or nothing is left to do",
    1: "internal error; a crash report is written",
    2: "usage or settings are wrong; no run directory is touched",
    3: "run directory: in use, exists, not found, not writable",
    4: "checkpoint unusable: damaged, foreign, unsafe, wrong shapes",
    5: "environment: cannot be created, or broke too often",
    6: "not finite: too many updates or rollouts with NaN or infinity",
    7: "external service: refused, failed, or out of retries",
    8: "resources: disk, memory, file descriptors, or what doctor finds missing",
    130: "stopped by Ctrl-C after a checkpoint (129: by a closed terminal, 143: by SIGTERM)",
}

_COMMANDS_ELSEWHERE = {"enjoy": "eval", "play": "eval", "test": "eval", "learn": "train", "tune": "sweep"}
"""Commands of other programs, and their counterparts here."""
_WORDS = "the algorithm and the environment are words: quintain train ppo CartPole-v1"
_OPTIONS_ELSEWHERE = {"--algo": _WORDS, "--algorithm": _WORDS, "--env-id": _WORDS}

# typer does not name this class in public; it is the parent of the one it does.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


ClickError: TypeAlias = Any
"""A Click error; its attributes depend on its class."""


def report(error: Exception, *, is_json: bool, is_debug: bool) -> int:
    """Prints the error for the user and returns the exit code."""
    is_usage = isinstance(error, UsageError)
    shown = SettingsError(_usage_message(error), code=USAGE_CODE) if is_usage else as_quintain_error(error)
    if is_debug:
        _print_lines(traceback_of(error).splitlines())
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


def _print_lines(lines: list[str]) -> None:
    sys.stderr.write("".join(escape_control_characters(line) + "\n" for line in lines))


def _usage_message(error: ClickError) -> str:
    command = error.ctx.command_path if error.ctx is not None else "quintain"
    if type(error).__name__ == "NoArgsIsHelpError":
        message = f"a command is missing; there are {', '.join(error.ctx.command.commands)}"
    elif hasattr(error, "possibilities"):
        message = _unknown_option_message(error.option_name, error.ctx)
    else:
        message = " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ")
        if (named := message.rpartition("No such command ")[2].strip("'")) in _COMMANDS_ELSEWHERE:
            message += f"; its counterpart is {_COMMANDS_ELSEWHERE[named]}"
    ending = "" if message.endswith("?") else "."
    return f"{command}: {message[:1].lower()}{message[1:]}{ending} See {command} --help"


def _unknown_option_message(option: str, context: typer.Context | None) -> str:
    if option in _OPTIONS_ELSEWHERE:
        return f"no such option {option}; {_OPTIONS_ELSEWHERE[option]}"
    parameters = context.command.params if context is not None else []
    options = [name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)]
    nearest = difflib.get_close_matches(option, options, n=1, cutoff=0.7)
    if nearest:
        return f"no such option {option}; did you mean {nearest[0]}?"
    if any(parameter.name == "words" for parameter in parameters):
        return f"no such option {option}; settings are written {option.lstrip('-').replace('-', '_')}=VALUE"
    return f"no such option {option}"
