"""The commands that start and resume a run: arguments become one request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quintain.cli.online import is_module, load_file, with_run_of_module
from quintain.cli.requests import (
    DEFAULT_RUNS_DIR,
    AgentOptions,
    Allow,
    Json,
    Overrides,
    Quiet,
    ResumeRequest,
    RunsDir,
    TrainRequest,
    usage_error,
)
from quintain.cli.training import output, resume_on_ray, start_on_ray, train_launched
from quintain.cli.words import FileSource, NamesSource, source_of, split_words
from quintain.placements.torchrun import is_follower
from quintain.runs import launch
from quintain.runs.ranks.lead import are_on_ray
from quintain.runs.restore import stored_settings
from quintain.services.files.run_directory import RunDirectory
from quintain.settings.tree import RunFile
from quintain.typing import Keywords


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|ALGO ENV|KEY=VALUE", help="What to train, and settings to change."),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    run_id: Annotated[str | None, typer.Option("--run-id", help="Name of the run; chosen if left out.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Short for experiment.seed=N.")] = None,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="Settings that ship for this pair, with their scores.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run named by --run-id.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Move an existing run of that name aside.")] = False,
    initialize_from: Annotated[
        str | None, typer.Option("--initialize-from", metavar="RUN", help="Start with the weights of a run.")
    ] = None,
    env: Annotated[
        str | None, typer.Option("--env", metavar="MODULE:NAME", help="Environment for a configuration of ML-Agents.")
    ] = None,
    num_envs: Annotated[int | None, typer.Option("--num-envs", min=1, help="Copies of it, in one process.")] = None,
    inference: Annotated[bool, typer.Option("--inference", help="Act with the run's policies; learn nothing.")] = False,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Take the likeliest actions.")] = False,
    allow: Allow = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Trains a policy, from a run file or from the names of an algorithm and an environment.

    For example: quintain train ppo CartPole-v1 num_envs=16 total_timesteps=200k
    """
    names, overrides = split_words(words or [])
    if resume and force:
        raise usage_error("--resume and --force exclude each other. Leave one out")
    if resume and run_id is None:
        raise usage_error("--resume needs --run-id. Or write: quintain resume RUN")
    agents = AgentOptions(env, num_envs, inference, deterministic)
    if seed is not None:
        overrides = _with_seed(overrides, seed)
    has_earlier_run = resume or initialize_from is not None
    if tuned and (resume or len(names) != 2):
        raise usage_error("--tuned goes with two names: quintain train ppo LunarLander-v3 --tuned")
    run_training(
        TrainRequest(
            source=None if has_earlier_run and not names else source_of(names),
            overrides=tuple(overrides),
            runs_dir=runs_dir,
            run_id=run_id,
            is_resume=resume,
            is_forced=force,
            initialize_from=initialize_from,
            is_tuned=tuned,
            allow=tuple(allow or ()),
            agents=agents,
            is_json=json,
            is_quiet=quiet,
        )
    )


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An id, a unique prefix, `latest`, or a path.")],
    words: Overrides = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    allow: Allow = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Resumes a run from its last checkpoint."""
    names, overrides = split_words(words or [])
    if names:
        raise usage_error(f"expected key=value after RUN and found {names[0]!r}. Name one run at a time")
    run_resume(
        ResumeRequest(
            run=run,
            overrides=tuple(overrides),
            runs_dir=runs_dir,
            allow=tuple(allow or ()),
            is_json=json,
            is_quiet=quiet,
        )
    )


def _with_seed(overrides: list[str], seed: int) -> list[str]:
    for override in overrides:
        if override.partition("=")[0].strip() in {"seed", "experiment.seed"}:
            raise usage_error(f"--seed {seed} and {override} both set the seed. Leave one out")
    return [*overrides, f"experiment.seed={seed}"]


def run_training(request: TrainRequest) -> None:
    """Starts a run, or resumes the one that --run-id names, and trains."""
    if is_follower():
        from quintain.runs.ranks.follow import follow_in_torchrun

        follow_in_torchrun()
        return
    if isinstance(request.source, FileSource) and is_module(request.source.path):
        request = with_run_of_module(request, request.source.path)
    elif isinstance(request.source, FileSource):
        # Only for files: ML-Agents' settings are as many as all others together, and take as long to import.
        from quintain.cli.mlagents import is_mlagents_source, run_configuration

        if is_mlagents_source(request.source.path):
            run_configuration(request, request.source.path)
            return
    if idle := request.agents.names():
        raise usage_error(f"{idle[0]} goes with a configuration of ML-Agents, and this is none. Leave it out")
    if request.is_resume:
        assert request.run_id is not None
        run_file = None if request.source is None else _load(request.source, request)
        _resume(request, request.run_id, run_file)
        return
    start_from = request.initialize_from
    weights = None if start_from is None else launch.checkpoint_of(request.runs_dir, start_from)
    settings = _settings(request, weights)
    place: Keywords = {
        "runs_dir": request.runs_dir,
        "run_id": request.run_id,
        "force": request.is_forced,
        "initialize_from": weights,
    }
    if are_on_ray(settings):
        start_on_ray(settings, request, place)
        return
    train_launched(launch.start(settings, **place, **output(request.is_json, request.is_quiet)), request)


def _resume(request: TrainRequest | ResumeRequest, run: str, run_file: RunFile | None = None) -> None:
    if resume_on_ray(request, run, run_file):
        return
    shown = output(request.is_json, request.is_quiet)
    launched = launch.resume(request.runs_dir, run, request.overrides, allow=request.allow, run_file=run_file, **shown)
    train_launched(launched, request)


def run_resume(request: ResumeRequest) -> None:
    """Resumes a run and trains."""
    if is_follower():
        from quintain.runs.ranks.follow import follow_in_torchrun

        follow_in_torchrun()
        return
    _resume(request, request.run)


def _load(source: FileSource | NamesSource, request: TrainRequest) -> RunFile:
    if isinstance(source, FileSource):
        return load_file(source.path, *request.overrides)
    return RunFile.from_names(source.algorithm, source.env, *request.overrides, tuned=request.is_tuned)


def _settings(request: TrainRequest, weights: Path | None) -> RunFile:
    """Returns the requested settings, or those of the run whose weights are loaded."""
    if request.source is not None:
        return _load(request.source, request)
    assert weights is not None
    directory = RunDirectory.open_existing(weights.parents[1])
    return stored_settings(directory, *request.overrides, allow=request.allow).replace("run.id", None)
