"""The command that plays episodes with a trained policy."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quintain.cli.requests import Allow, Json, RunsDir

if TYPE_CHECKING:
    from quintain.rollouts.evaluate import EpisodeResults


@dataclass(frozen=True)
class EvalRequest:
    """Holds what `quintain eval` was asked for."""

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
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="How many episodes to play.")] = 10,
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
    """Plays episodes with a trained policy and reports the returns."""
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
    """Plays the episodes and prints what came of them."""
    from quintain.runs import results as stored

    if not request.is_json:
        typer.echo(f"playing {request.num_episodes} episodes with {request.run} ...", err=True)
    found = stored.evaluate_behaviors(
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
    if found is not None:
        _print_behaviors(*found, request)
        return
    results, checkpoint, video = stored.evaluate(
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
    if results.num_cut:
        _tell(f"note: {results.cut_note}; --max-episode-steps sets this, 0 for no limit")
    if request.is_json:
        about = {
            "run": checkpoint.parents[1].name,
            "checkpoint": checkpoint.name,
            "episodes": len(results.returns),
            "cut_episodes": results.num_cut,
            "deterministic": request.is_deterministic,
            "mean_return": results.mean_return,
            "std_return": results.std_return,
            "mean_length": results.mean_length,
            "returns": results.returns.tolist(),
            **({"video": video} if video else {}),
        }
        typer.echo(json_module.dumps(about))
        return
    typer.echo(
        f"return {results.mean_return:.1f} ± {results.std_return:.1f} · length {results.mean_length:.1f} · "
        f"{len(results.returns)} episodes{f', {results.num_cut} of them cut' if results.num_cut else ''} · "
        f"checkpoint {checkpoint.name} of {checkpoint.parents[1].name}"
    )
    if video:
        typer.echo(f"video {video}")


def _tell(text: str) -> None:
    typer.echo(text, err=True)


def _print_behaviors(
    results: Mapping[str, EpisodeResults], checkpoint: Path, video: str | None, request: EvalRequest
) -> None:
    """Prints what came of the episodes of each behaviour."""
    for name, each in results.items():
        if each.num_cut:
            _tell(f"note: {name}: {each.cut_note}; --max-episode-steps sets this, 0 for no limit")
    if request.is_json:
        played = {
            name: {
                "mean_return": each.mean_return,
                "std_return": each.std_return,
                "mean_length": each.mean_length,
                "returns": each.returns.tolist(),
            }
            for name, each in results.items()
        }
        about = {"run": checkpoint.parents[1].name, "checkpoint": checkpoint.name, "episodes": request.num_episodes}
        about |= {"video": video} if video else {}
        typer.echo(json_module.dumps({**about, "deterministic": request.is_deterministic, "behaviors": played}))
        return
    for name, each in results.items():
        typer.echo(
            f"{name}: return {each.mean_return:.1f} ± {each.std_return:.1f} · length {each.mean_length:.1f} · "
            f"{request.num_episodes} episodes · checkpoint {checkpoint.name} of {checkpoint.parents[1].name}"
        )
    if video:
        typer.echo(f"video {video}")
