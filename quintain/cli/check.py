"""The `quintain check` command: problems of an environment, with fixes."""

from __future__ import annotations

import json as json_text
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from quintain.cli.words import split_words
from quintain.envs.settings import AgentsSettings, GymSettings
from quintain.errors import EnvError
from quintain.services.reporting.printable import escape_control_characters
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.envs.check.checks import Finding

_ANY_ALGORITHM = "ppo"
_COLORS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}
_INDENT = 24
_MIN_WIDTH = 60


def check(
    env: Annotated[
        str, typer.Argument(metavar="ENV", help="A Gymnasium id, module:Name, TYPE/ID, or a registered name.")
    ],
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the environment.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=10, help="How many steps to play.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the episodes.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one object with every finding.")] = False,
) -> None:
    """Checks an environment: spaces, ends, seeds, scale, side effects, workers, speed. Exits with 5 if a check fails.

    For example: quintain check my_package:MyEnv max_episode_steps=500
    """
    _, overrides = split_words(words or [])
    run_file = RunFile.from_names(_ANY_ALGORITHM, env, *overrides)
    findings, way = _findings(run_file, steps, seed)
    problems = [finding for finding in findings if finding.level == "problem"]
    if json:
        about = {"env": env, "ok": not problems, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json_text.dumps(about))
        if problems:
            # The findings say what is wrong, and standard output stays one JSON document.
            raise typer.Exit(EnvError.exit_code)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for finding in findings:
        for line in _lines(finding, width):
            typer.echo(line)
    if problems:
        count = _counted(len(problems), "problem")
        raise EnvError(f"env {env!r} has {count}; the first: {problems[0].what}", code="E0516")
    typer.echo(_summary(findings, " ".join([way or env, *([] if way else words or [])])))


def _findings(run_file: RunFile, num_steps: int, seed: int) -> tuple[list[Finding], str]:
    """Returns what was found, and the environment's name for training where it is another than the one given."""
    from quintain.envs.check.agents import has_agents
    from quintain.envs.check.checks import check_agents, check_env, check_lanes
    from quintain.runs.env_maker import env_maker

    settings = run_file.experiment.env
    if isinstance(settings, AgentsSettings):
        return check_agents(settings, num_steps=num_steps, seed=seed), ""
    if not isinstance(settings, GymSettings) or settings.vectorization != "lanes":
        return check_lanes(env_maker(run_file), num_steps=num_steps, seed=seed), ""
    if has_agents(settings):
        named = AgentsSettings(id=settings.id, kwargs=settings.kwargs)
        return check_agents(named, num_steps=num_steps, seed=seed), f"agents/{settings.id}"
    return check_env(settings, num_steps=num_steps, seed=seed), ""


def _lines(finding: Finding, width: int | None) -> Iterator[str]:
    """Formats a finding: level, check and sentence, and below them the fix; wrapped only on a terminal."""
    room = None if width is None else max(width, _MIN_WIDTH) - _INDENT
    level = typer.style(f"{finding.level:8}", fg=_COLORS[finding.level], bold=finding.level == "problem")
    for number, part in enumerate(_folded(finding.what, room)):
        yield f"{level} {finding.check:14} {part}" if number == 0 else f"{'':{_INDENT}}{part}"
    for number, part in enumerate(_folded(finding.fix, None if room is None else room - 5) if finding.fix else ()):
        lead = typer.style("fix:", bold=True) if number == 0 else " " * 4
        yield f"{'':{_INDENT}}{lead} {part}"


def _folded(text: str, room: int | None) -> list[str]:
    shown = escape_control_characters(text)
    return [shown] if room is None else textwrap.wrap(shown, room, break_on_hyphens=False)


def _summary(findings: Sequence[Finding], words: str) -> str:
    levels = Counter(finding.level for finding in findings)
    remarks = [_counted(levels[level], level) for level in ("warning", "note") if levels[level]]
    found = typer.style("no problems", fg="green", bold=True) + "".join(f", {remark}" for remark in remarks)
    return f"{found}. Train in it with: quintain train {_ANY_ALGORITHM} {escape_control_characters(words)}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"
