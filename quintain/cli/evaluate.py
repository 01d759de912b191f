"""The command that evaluates a trained policy."""

from __future__ import annotations

import json as json_module
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quintain.cli.requests import Allow, Json, RunsDir
from quintain.services.files.run_names import resolve_run, split_checkpoint_suffix
from quintain.services.reporting.digits import plural

if TYPE_CHECKING:
    from quintain.runs.results import Evaluation
    from quintain.typing import JsonObject


@dataclass(frozen=True)
class EvalRequest:
    """The arguments of `quintain eval`."""

    run: str
    num_episodes: int
    is_deterministic: bool
    seed: int | None
    runs_dir: Path
    allow: tuple[str, ...]
    is_json: bool
    has_video: bool = False
    max_episode_steps: int | None = None


def eval_run(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="An id, a unique prefix, `latest`, or a path; RUN@best too.")
    ],
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, help="How many episodes to play.")] = 10,
    deterministic: Annotated[
        bool, typer.Option("--deterministic/--stochastic", help="Take the likeliest action, or sample.")
    ] = True,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Seed of the episodes.")] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Write the first episode as an animation to the run's videos folder.")
    ] = False,
    max_episode_steps: Annotated[
        int | None,
        typer.Option(
            "--max-episode-steps",
            min=0,
            help="Steps after which an episode that does not end is cut; 0 for never. As in the run by default.",
        ),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    allow: Allow = None,
    json: Json = False,
) -> None:
    """Evaluates a trained policy over whole episodes and reports the returns."""
    run_evaluation(
        EvalRequest(
            run=run,
            num_episodes=episodes,
            is_deterministic=deterministic,
            seed=seed,
            runs_dir=runs_dir,
            allow=tuple(allow or ()),
            is_json=json,
            has_video=video,
            max_episode_steps=max_episode_steps,
        )
    )


def run_evaluation(request: EvalRequest) -> None:
    """Evaluates the policy and prints the results."""
    from quintain.runs import results as stored

    # A run that is not there is said before anything else is.
    resolve_run(request.runs_dir, split_checkpoint_suffix(request.run)[0])
    if not request.is_json:
        typer.echo(f"playing {plural(request.num_episodes, 'episode')} with {request.run} ...", err=True)
    played = stored.evaluate(
        request.runs_dir,
        request.run,
        num_episodes=request.num_episodes,
        deterministic=request.is_deterministic,
        seed=request.seed,
        allow=request.allow,
        has_video=request.has_video,
        max_episode_steps=request.max_episode_steps,
        tell=_tell,
    )
    # Lanes have one behaviour, whose name says nothing.
    labels = {name: f"{name}: " if played.has_agents else "" for name in played.results}
    for name, each in played.results.items():
        if each.num_cut:
            _tell(f"note: {labels[name]}{each.cut_note}; --max-episode-steps sets this, 0 for no limit")
    if request.is_json:
        typer.echo(json_module.dumps(_as_json(played, request)))
        return
    for name, each in played.results.items():
        of = f"checkpoint {played.checkpoint.name} of {played.checkpoint.parents[1].name}"
        typer.echo(f"{labels[name]}{each} · {of}")
    if played.video:
        typer.echo(f"video {played.video}")


def _as_json(played: Evaluation, request: EvalRequest) -> JsonObject:
    about: JsonObject = {
        "run": played.checkpoint.parents[1].name,
        "checkpoint": played.checkpoint.name,
        "deterministic": request.is_deterministic,
        **({"video": played.video} if played.video else {}),
    }
    results = {
        name: {
            "episodes": len(each.returns),
            "cut_episodes": each.num_cut,
            "mean_return": each.mean_return,
            "std_return": each.std_return,
            "interval": list(each.interval()) if len(each.returns) > 1 else None,
            "mean_length": each.mean_length,
            **({} if each.success_rate is None else {"success_rate": each.success_rate}),
            "returns": each.returns.tolist(),
        }
        for name, each in played.results.items()
    }
    if played.has_agents:
        return {**about, "episodes": request.num_episodes, "behaviors": results}
    [only] = results.values()
    return {**about, **only}


def _tell(text: str) -> None:
    typer.echo(text, err=True)
