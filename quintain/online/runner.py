"""Runs an online training in a run directory: starts it, goes on with it, or starts with the weights of another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from quintain.errors import RunDirectoryError, SettingsError
from quintain.online.config import refuse_missing_gpus
from quintain.online.settings import WITHOUT_EFFECT, WITHOUT_EFFECT_ON_RAY, OnlineConfig, TrainConfig
from quintain.online.translate import Generators, env_slot, run_settings
from quintain.runs import launch
from quintain.runs.assemble import Slots
from quintain.runs.ranks.on_ray import new_run, old_run, train_on_ray
from quintain.services.processes.signals import INTERRUPTED
from quintain.settings.sources import PYTHON
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.services.reporting.writers import RunSummary
    from quintain.typing import JsonObject

Begun = TypeVar("Begun")


@dataclass(frozen=True)
class RayPlace:
    """Where rollout workers are actors, and how the learner is started."""

    address: str
    is_under_train: bool = False
    """Whether a single rank, too, is a worker of Ray Train; otherwise it is this process."""


def train_online(
    config: OnlineConfig,
    generators: Generators,
    *,
    trainer: JsonObject | None = None,
    function: Callable[..., object] | None = None,
    idle: Sequence[str] = (),
    place: RayPlace | None = None,
) -> RunSummary:
    """Trains to the end of the run; `trainer` and `function` are those of a trainer of a user's own.

    `idle` are keys that were set and change nothing, which are named once. With a `place` it is on Ray.
    """
    train = config.train_config
    is_under_train = place is not None and (place.is_under_train or train.num_workers > 1)
    if not is_under_train:
        refuse_missing_gpus(config, torch.cuda.device_count())
    address = None if place is None else place.address
    settings = run_settings(config, generators, trainer, address)
    slot = env_slot(config, generators)
    slots = None if slot is None and function is None else Slots(env=slot, function=function)
    if is_under_train:
        return _train_under_ray_train(config, settings, slots, idle)
    launched = _begun(launch.start, launch.resume, config, settings, slots)
    launched.run.commands.continued_by = _key_to_continue(launched.directory.run_id)
    try:
        if idle:
            launched.run.writer.note(idle_note(idle, on_ray=place is not None))
        return launched.trainer.train()
    finally:
        launched.trainer.close()
        launched.run.close()


def _train_under_ray_train(
    config: OnlineConfig, settings: JsonObject, slots: Slots | None, idle: Sequence[str]
) -> RunSummary:
    """Trains in workers of Ray Train; a signal ends the script after its run was saved, as everywhere."""
    run = _begun(new_run, old_run, config, settings, slots)
    notes = [idle_note(idle, on_ray=True)] if idle else []
    end = train_on_ray(replace(run, notes=notes, continued_by=_key_to_continue(run.directory.name)))
    if end.exit_code == INTERRUPTED:
        raise KeyboardInterrupt
    if end.exit_code:
        raise SystemExit(end.exit_code)
    return end.summary


def _key_to_continue(run_id: str) -> str:
    return f'train_config.resume = "{run_id}"'


def _begun(
    start: Callable[..., Begun],
    resume: Callable[..., Begun],
    config: OnlineConfig,
    settings: JsonObject,
    slots: Slots | None,
) -> Begun:
    """Starts a new run, or resumes the one that a configuration names."""
    train, run_file = config.train_config, RunFile.from_mapping(settings, origin=PYTHON)
    runs_dir = Path(train.save_path or "runs")
    with _advising_scripts():
        if (continued := run_to_continue(train, runs_dir)) is not None:
            return resume(*continued, changes_on_resume(settings), run_file=run_file, slots=slots)
        weights, run_id = initial_weights(train, runs_dir), config.logger_config.name
        return start(run_file, runs_dir=runs_dir, run_id=run_id, initialize_from=weights, slots=slots)


def changes_on_resume(settings: JsonObject) -> list[str]:
    """Returns the settings that a configuration may change on resume: iterations, and workers, which is not exact."""
    experiment, placement = settings["experiment"], settings["run"]["placement"]
    return [
        f"experiment.budget.updates={json.dumps(experiment['budget']['updates'])}",
        f"run.placement.num_ranks={json.dumps(placement['num_ranks'])}",
        f"experiment.env.num_collectors={json.dumps(experiment['env']['num_collectors'])}",
    ]


@contextmanager
def _advising_scripts() -> Iterator[None]:
    """Adds to errors, which name options of commands, the keys of a configuration that do the same."""
    try:
        yield
    except (RunDirectoryError, SettingsError) as error:
        if isinstance(error, RunDirectoryError) or error.code == "E0207":
            error.add_note(
                "help: in a configuration train_config.resume continues a run, train_config.save_path is the folder of "
                "runs, and logger_config.name names a new one"
            )
        raise


def idle_note(keys: Sequence[str], *, on_ray: bool = False) -> str:
    """Says which keys change nothing here, and why, in one line."""
    where, why = ("Ray", WITHOUT_EFFECT_ON_RAY) if on_ray else ("processes", WITHOUT_EFFECT)
    return f"note: on {where} these change nothing: " + "; ".join(f"{key} ({why[key]})" for key in keys)


def run_to_continue(train: TrainConfig, runs_dir: Path) -> tuple[Path, str] | None:
    """Returns the folder and the name of the run that `resume` continues; None for a new run."""
    return None if train.resume is None or not train.resume_optimizer else run_of(runs_dir, train.resume)


def initial_weights(train: TrainConfig, runs_dir: Path) -> Path | None:
    """Returns the checkpoint with whose weights a new run begins, by `resume` without `resume_optimizer`."""
    if train.resume is None or train.resume_optimizer:
        return None
    return launch.checkpoint_of(*run_of(runs_dir, train.resume))


def run_of(runs_dir: Path, resume: str) -> tuple[Path, str]:
    """Returns the folder of runs and RUN or RUN@CHECKPOINT for what `resume` names.

    Example:
        >>> run_of(Path("runs"), "output/walk/checkpoints/000004-step-384")
        (PosixPath('output'), 'walk@000004-step-384')
    """
    path = Path(resume)
    if path.parent.name == "checkpoints":
        run = path.parents[1]
        return run.parent, f"{run.name}@{path.name}"
    return (path.parent, path.name) if "/" in resume else (runs_dir, resume)
