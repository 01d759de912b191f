"""The commands that start and continue a run: what the user typed becomes one request."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quintain.cli.errors import crash_reports
from quintain.cli.words import USAGE_CODE, FileSource, NamesSource, source_of, split_words
from quintain.errors import SettingsError
from quintain.follow import follow_in_torchrun, is_follower
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.launch import Launched

RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Where run directories are.")]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="MODULE:NAME", help="Code that the stored run file may load. Repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result, or the error, as one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")]


@dataclass(frozen=True)
class AgentOptions:
    """Holds what only a configuration of ML-Agents takes."""

    env: str | None = None
    num_envs: int | None = None
    is_inference: bool = False
    is_deterministic: bool = False

    def names(self) -> list[str]:
        """Returns the options that were typed and need such a configuration."""
        given = {
            "--env": self.env,
            "--num-envs": self.num_envs,
            "--inference": self.is_inference,
            "--deterministic": self.is_deterministic,
        }
        return [name for name, value in given.items() if value]


@dataclass(frozen=True)
class TrainRequest:
    """Holds what `quintain train` was asked for."""

    source: FileSource | NamesSource | None
    """None only where an earlier run supplies the settings (`--resume`, `--initialize-from`)."""
    overrides: tuple[str, ...]
    runs_dir: Path
    run_id: str | None
    is_resume: bool
    is_forced: bool
    initialize_from: str | None
    allow: tuple[str, ...]
    is_json: bool
    is_quiet: bool
    agents: AgentOptions = AgentOptions()


@dataclass(frozen=True)
class ResumeRequest:
    """Holds what `quintain resume` was asked for."""

    run: str
    overrides: tuple[str, ...]
    runs_dir: Path
    allow: tuple[str, ...]
    is_json: bool
    is_quiet: bool


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE|ALGO ENV|KEY=VALUE", help="What to train, and settings to change."),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    run_id: Annotated[str | None, typer.Option("--run-id", help="Name of the run; chosen if left out.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Short for experiment.seed=N.")] = None,
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
    """Trains a policy, from a file or from two names.

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
    run_training(
        TrainRequest(
            source=None if has_earlier_run and not names else source_of(names),
            overrides=tuple(overrides),
            runs_dir=runs_dir,
            run_id=run_id,
            is_resume=resume,
            is_forced=force,
            initialize_from=initialize_from,
            allow=tuple(allow or ()),
            agents=agents,
            is_json=json,
            is_quiet=quiet,
        )
    )


def resume(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An id, a unique prefix, `latest`, or a path.")],
    words: Overrides = None,
    runs_dir: RunsDir = Path("runs"),
    allow: Allow = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continues a run where its last checkpoint stands."""
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


def usage_error(message: str) -> SettingsError:
    """Makes the error for words that cannot be understood."""
    return SettingsError(message, code=USAGE_CODE)


def run_training(request: TrainRequest) -> None:
    """Starts a run, or continues the one that --run-id names, and trains."""
    if is_follower():
        follow_in_torchrun()
        return
    from quintain import launch
    from quintain.cli.mlagents import is_mlagents_source, run_configuration

    if isinstance(request.source, FileSource) and is_mlagents_source(request.source.path):
        run_configuration(request, request.source.path)
        return
    if idle := request.agents.names():
        raise usage_error(f"{idle[0]} goes with a configuration of ML-Agents, and this is none. Leave it out")
    if request.is_resume:
        assert request.run_id is not None
        run_file = None if request.source is None else _load(request.source, request.overrides)
        launched = launch.resume(
            request.runs_dir,
            request.run_id,
            request.overrides,
            allow=request.allow,
            run_file=run_file,
            **output(request.is_json, request.is_quiet),
        )
    else:
        start_from = request.initialize_from
        weights = None if start_from is None else launch.checkpoint_of(request.runs_dir, start_from)
        launched = launch.start(
            _settings(request, weights),
            runs_dir=request.runs_dir,
            run_id=request.run_id,
            force=request.is_forced,
            initialize_from=weights,
            **output(request.is_json, request.is_quiet),
        )
    train_launched(launched, request)


def run_resume(request: ResumeRequest) -> None:
    """Continues a run and trains."""
    if is_follower():
        follow_in_torchrun()
        return
    from quintain import launch

    launched = launch.resume(
        request.runs_dir,
        request.run,
        request.overrides,
        allow=request.allow,
        **output(request.is_json, request.is_quiet),
    )
    train_launched(launched, request)


def _load(source: FileSource | NamesSource, overrides: tuple[str, ...]) -> RunFile:
    if isinstance(source, FileSource):
        return RunFile.load(source.path, *overrides)
    return RunFile.from_names(source.algorithm, source.env, *overrides)


def _settings(request: TrainRequest, weights: Path | None) -> RunFile:
    """Returns what was asked for, or the settings of the run whose weights are taken."""
    if request.source is not None:
        return _load(request.source, request.overrides)
    assert weights is not None
    stored = RunFile.load(weights.parents[1] / "config.yaml", *request.overrides, trusted=False, allow=request.allow)
    return stored.replace("run.id", None)


def output(is_json: bool, is_quiet: bool) -> dict[str, Any]:
    """Returns where progress goes."""
    # With --json, standard output belongs to the result; progress goes beside it.
    return {"stream": sys.stderr if is_json else None, "quiet": is_quiet}


def train_launched(launched: Launched, request: TrainRequest | ResumeRequest) -> None:
    """Trains what was prepared, and reports how it ended."""
    from quintain.rank_losses import train_through_losses

    directory, trainer = launched.directory, launched.trainer
    with crash_reports(directory.write_crash):
        if trainer.is_finished:
            done = f"{trainer.progress.env_steps} of {trainer.progress.budget_env_steps} steps are done"
            longer = f"quintain resume {directory.run_id} total_timesteps=N"
            launched.run.writer.note(f"nothing left to do: {done}. Train for longer with: {longer}")
        launched, summary = train_through_losses(launched, **output(request.is_json, request.is_quiet))
    run = launched.run
    if request.is_json:
        about = {"run": directory.run_id, "directory": str(directory.shown), **asdict(summary)}
        typer.echo(json_module.dumps({**about, "digest": None if run.last is None else run.last.digest}))
    if run.exit_code:
        raise typer.Exit(run.exit_code)
