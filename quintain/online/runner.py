"""Runs an online training in a run directory: starts it, goes on with it, or starts with the weights of another."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from quintain.online.config import refuse_missing_gpus
from quintain.online.settings import WITHOUT_EFFECT, OnlineConfig
from quintain.online.translate import Generators, env_slot, run_settings
from quintain.runs import launch
from quintain.runs.assemble import Slots
from quintain.settings.sources import PYTHON
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.services.reporting.writers import RunSummary
    from quintain.typing import JsonObject


def train_online(
    config: OnlineConfig,
    generators: Generators,
    *,
    trainer: JsonObject | None = None,
    function: Callable[..., object] | None = None,
    idle: Sequence[str] = (),
) -> RunSummary:
    """Trains to the end of the run; `trainer` and `function` are those of a trainer of a user's own.

    `idle` are keys that were set and change nothing, which are named once.
    """
    train = config.train_config
    refuse_missing_gpus(config, torch.cuda.device_count())
    run_file = RunFile.from_mapping(run_settings(config, generators, trainer), origin=PYTHON)
    slot = env_slot(config, generators.env_generator)
    slots = None if slot is None and function is None else Slots(env=slot, function=function)
    runs_dir = Path(train.save_path or "runs")
    if train.resume is not None and train.resume_optimizer:
        budget = [f"experiment.budget.updates={json.dumps(train.num_iterations)}"]
        place, run = run_of(runs_dir, train.resume)
        launched = launch.resume(place, run, budget, run_file=run_file, slots=slots)
    else:
        weights = None if train.resume is None else launch.checkpoint_of(*run_of(runs_dir, train.resume))
        run_id = config.logger_config.name
        launched = launch.start(run_file, runs_dir=runs_dir, run_id=run_id, initialize_from=weights, slots=slots)
    try:
        if idle:
            launched.run.writer.note(idle_note(idle))
        return launched.trainer.train()
    finally:
        launched.trainer.close()
        launched.run.close()


def idle_note(keys: Sequence[str]) -> str:
    """Says which keys change nothing here, and why, in one line."""
    return "note: on processes these change nothing: " + "; ".join(f"{key} ({WITHOUT_EFFECT[key]})" for key in keys)


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
