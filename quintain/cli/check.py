"""The `quintain check` command: what is wrong with an environment, and what to do about it."""

from __future__ import annotations

import json as json_text
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from quintain.cli.words import split_words
from quintain.errors import EnvError
from quintain.services.printable import escape_control_characters
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.envs.checks import Finding

_ANY_ALGORITHM = "ppo"


def check(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A Gymnasium id, module:Name, or a registered name.")],
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the environment.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=10, help="How many steps to play.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the episodes.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one object with every finding.")] = False,
) -> None:
    """Checks an environment: spaces, ends, seeds, scale, workers, speed. Exits with 5 if something is wrong.

    For example: quintain check my_package:MyEnv max_episode_steps=500
    """
    _, overrides = split_words(words or [])
    findings = _findings(RunFile.from_names(_ANY_ALGORITHM, env, *overrides), steps, seed)
    problems = [finding for finding in findings if finding.level == "problem"]
    if json:
        about = {"env": env, "ok": not problems, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json_text.dumps(about))
        if problems:
            # The findings say what is wrong, and standard output stays one JSON document.
            raise typer.Exit(EnvError.exit_code)
        return
    for finding in findings:
        typer.echo(escape_control_characters(str(finding)))
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise EnvError(f"env {env!r} has {count}; the first: {problems[0].what}", code="E0516")


def _findings(run_file: RunFile, num_steps: int, seed: int) -> list[Finding]:
    from quintain.acting import env_maker
    from quintain.envs.checks import check_env, check_lanes
    from quintain.envs.settings import GymSettings

    settings = run_file.experiment.env
    if isinstance(settings, GymSettings) and settings.vectorization == "lanes":
        return check_env(settings, num_steps=num_steps, seed=seed)
    return check_lanes(env_maker(run_file), num_steps=num_steps, seed=seed)
