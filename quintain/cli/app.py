"""The `quintain` command: the list of commands, and the handling of their errors.

A command's module is imported when the command is called, so that `quintain --help` is fast.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from quintain.cli.errors import EXIT_CODES, report
from quintain.core.versions import quintain_version
from quintain.services.processes.signals import INTERRUPTED, Interrupts
from quintain.services.reporting.lost_reader import has_lost_its_reader, silence

COMMANDS = {
    "train": ("quintain.cli.train:train", "Trains a policy, from a file or from two names."),
    "resume": ("quintain.cli.train:resume", "Continues a run where its last checkpoint stands."),
    "eval": (
        "quintain.cli.evaluate:eval_run",
        "Plays episodes with a trained policy and reports the returns.",
    ),
    "sweep": ("quintain.cli.sweep:app", "Trains a grid of settings and seeds, resumable, with one summary table."),
    "check": ("quintain.cli.check:check", "Looks an environment over: spaces, ends, seeds, scale, workers, speed."),
    "bench": ("quintain.cli.bench:bench", "Measures an environment's limits, and says what to change."),
    "export": ("quintain.cli.export:export_run", "Writes a trained policy as ONNX, compared with the original."),
    "checkpoints": ("quintain.cli.checkpoints:app", "Lists, verifies and digests the checkpoints of a run."),
    "config": ("quintain.cli.config:app", "Shows every setting with its origin, or the JSON schema."),
    "validate": ("quintain.cli.validate:validate", "Checks run files without running them."),
    "doctor": ("quintain.cli.doctor:doctor", "Explains this installation: Python, torch, devices, threads, extras."),
    "serve-text": (
        "quintain.cli.serve_text:serve_text",
        "Serves text models as OpenAI does, on loopback and with a token.",
    ),
    "transcripts": (
        "quintain.cli.transcripts:transcripts",
        "Shows the conversations of a text run, with rewards and decisions.",
    ),
    "list": ("quintain.cli.list:list_registered", "Lists everything that a run file can name."),
}
"""Name -> (`module:attribute` of a function or a `typer.Typer`, one line for the help)."""

_CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}
_COMPLETION_VARIABLE = "_QUINTAIN_COMPLETE"


class LazyCommand(TyperCommand):
    """A command in the help whose module is imported only when it is called."""

    def __init__(self, name: str, target: str, help: str) -> None:
        super().__init__(name=name, help=help)
        self._target = target

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Loads the real command and lets it parse its arguments; the context is that command's."""
        return self._load().make_context(info_name, args, parent=parent, **extra)

    def _load(self) -> Any:
        module, _, attribute = self._target.partition(":")
        loaded = getattr(importlib.import_module(module), attribute)
        if not isinstance(loaded, typer.Typer):
            function, loaded = loaded, typer.Typer(add_completion=False, context_settings=_CONTEXT_SETTINGS)
            loaded.command(self.name)(function)
        loaded.rich_markup_mode = None
        return get_command(loaded)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"quintain {quintain_version()}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks. Allowed after a command too.")] = False,
) -> None:
    """Reinforcement learning that is right, fast, exact on resume, and pleasant."""


def build() -> TyperGroup:
    """Builds the command line without importing any command's module."""
    # \b is how typer is told not to join the lines of a paragraph.
    codes = "\b\nExit codes:\n" + "\n".join(f"{code:>5}  {meaning}" for code, meaning in EXIT_CODES.items())
    app = typer.Typer(rich_markup_mode=None, context_settings=_CONTEXT_SETTINGS, epilog=codes)
    app.callback()(_root)
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for name, (target, help_line) in COMMANDS.items():
        group.add_command(LazyCommand(name, target, help_line))
    return group


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; no exception leaves it."""
    words = list(sys.argv[1:] if argv is None else argv)
    is_json, is_debug = "--json" in words, "--debug" in words
    # Names of runs and files may hold characters that the terminal cannot show.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    interrupts, exit_code = Interrupts(), 0
    with interrupts.watching():
        try:
            exit_code = _run([word for word in words if word != "--debug"])
            sys.stdout.flush()
        except (KeyboardInterrupt, Exception) as error:
            if interrupts.is_interrupted or isinstance(error, KeyboardInterrupt):
                with suppress(OSError):
                    sys.stderr.write("stopped by Ctrl-C\n")
                return INTERRUPTED
            if isinstance(error, OSError) and has_lost_its_reader(sys.stdout):
                silence(sys.stdout)
                return exit_code
            with suppress(OSError):
                return report(error, is_json=is_json, is_debug=is_debug)
            return 1
    return exit_code


def _run(words: list[str]) -> int:
    group = build()
    if _COMPLETION_VARIABLE in os.environ:
        group.main(words, prog_name="quintain")
    try:
        with group.make_context("quintain", list(words) or ["--help"]) as context:
            group.invoke(context)
    except typer.Exit as ending:
        return ending.exit_code if words else 2
    return 0
