"""The `quintain bench` command: the bottleneck of training in an environment, and the remedy."""

from __future__ import annotations

import json as json_text
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quintain.cli.words import split_words
from quintain.envs.settings import GymSettings
from quintain.runs.output import env_name
from quintain.services.reporting.printable import escape_control_characters
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.runs.env_limits import Limits, Pace, RawRate
    from quintain.typing import JsonObject

_WIDTH = 40


def bench(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A Gymnasium id, module:Name, or a registered name.")],
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the run.")] = None,
    algorithm: Annotated[str, typer.Option("--algorithm", "-a", help="The algorithm that learns.")] = "ppo",
    seconds: Annotated[float, typer.Option("--seconds", min=0.01, help="Length of the real run.")] = 5.0,
    json: Annotated[bool, typer.Option("--json", help="Print one object with every number.")] = False,
) -> None:
    """Measures an environment's limits: its steps/s alone, the cost of acting and learning, and the bottleneck.

    For example: quintain bench CartPole-v1 num_lanes=64
    """
    _, overrides = split_words(words or [])
    run_file = RunFile.from_names(algorithm, env, *overrides)
    say = _silent if json else _say
    settings: Any = run_file.experiment.env
    if isinstance(settings, GymSettings) and ":" not in settings.id:
        from quintain.envs.gym.packages import registered_id

        registered_id(settings.id)
    say(
        f"{env_name(run_file)} · {algorithm} · {settings.num_lanes} lanes · {run_file.run.threads} thread"
        f"{'s' if run_file.run.threads > 1 else ''} · about {1.6 * seconds + 3:.0f} s"
    )
    from quintain.runs.env_limits import advice, limits_of, raw_rates, real_pace

    raw = []
    for rate in raw_rates(run_file, seconds / 5):
        raw.append(rate)
        say(_raw_line(rate))
    pace = real_pace(run_file, seconds)
    here = next(rate for rate in reversed(raw) if rate.num_workers == 0)
    limits = limits_of(here, pace)
    hints = advice(run_file, tuple(raw), pace)
    if json:
        typer.echo(json_text.dumps(_document(env, raw, pace, limits, hints)))
        return
    for line in _result_lines(pace, limits, hints):
        say(line)


def _raw_line(rate: RawRate) -> str:
    lanes = f"{rate.num_lanes} lane{'s' if rate.num_lanes > 1 else ''}"
    where = f", {rate.num_workers} workers" if rate.num_workers else ""
    return _row(f"environment alone, {lanes}{where}", f"{rate.steps_per_second:12,.0f} steps/s")


def _result_lines(pace: Pace, limits: Limits, hints: list[str]) -> list[str]:
    costs = " · ".join(f"{what} {cost:.1f}" for what, cost in pace.microseconds.items())
    share = pace.microseconds[pace.bottleneck] / sum(pace.microseconds.values())
    return [
        _row("training", f"{pace.steps_per_second:12,.0f} steps/s"),
        _row(
            "limit, one after the other", f"{limits.serial:12,.0f} steps/s, of which {limits.fraction:.0%} is reached"
        ),
        _row("limit, learning beside the rest", f"{limits.overlapped:12,.0f} steps/s, on another core"),
        _row("microseconds of a step", f"  {costs}"),
        _row("most of it", f"  {pace.bottleneck} ({share:.0%})"),
        *(_row("try" if number == 0 else "", f"  {hint}") for number, hint in enumerate(hints)),
    ]


def _document(env: str, raw: list[RawRate], pace: Pace, limits: Limits, hints: list[str]) -> JsonObject:
    return {
        "env": env,
        "raw": [asdict(rate) for rate in raw],
        "training": {"steps_per_second": pace.steps_per_second, "microseconds": dict(pace.microseconds)},
        "limits": asdict(limits),
        "bottleneck": pace.bottleneck,
        "advice": hints,
    }


def _row(name: str, text: str) -> str:
    return f"{name:{_WIDTH}}{text}"


def _say(text: str) -> None:
    typer.echo(escape_control_characters(text))


def _silent(text: str) -> None:
    """Keeps standard output for the one JSON document."""
