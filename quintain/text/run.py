"""Runs experiments whose agents are text models, from hyper-parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.experiments.registry import TRAINER_REGISTRY, get_trainer_class
from quintain.runs import launch
from quintain.runs.assemble import Slots
from quintain.services.files.run_directory import RunDirectory
from quintain.settings.sources import PYTHON
from quintain.settings.tree import RunFile
from quintain.text.expert_iteration import PureTextEiTrainer
from quintain.text.scenario_instance import TextScenarioInstance, build_text_instance
from quintain.text.settings import TextTrainerSettings
from quintain.text.translate import SHIPPED_TRAINER, run_settings

if TYPE_CHECKING:
    from quintain.experiments.experiment_settings import ExperimentSettings
    from quintain.experiments.hyper_parameters import HyperParameters
    from quintain.services.reporting.writers import RunSummary
    from quintain.text.trainer import PureTextRlTrainer
    from quintain.typing import Keyword


def text_trainer_class(name: str) -> type[PureTextRlTrainer]:
    """Returns the text trainer of a name: one that was registered, or expert iteration."""
    if name == SHIPPED_TRAINER and name not in TRAINER_REGISTRY:
        return PureTextEiTrainer
    found: type[PureTextRlTrainer] = get_trainer_class(name)
    return found


def text_run_file(
    hyper_params: HyperParameters, settings: ExperimentSettings, writers: Sequence[Keyword] = ()
) -> RunFile:
    """Returns the run file of an experiment."""
    text_trainer_class(hyper_params.trainer)
    run = {"run": {"writers": list(writers)}} if writers else {}
    return RunFile.from_mapping({**run_settings(hyper_params, settings), **run}, origin=PYTHON)


def build_text_scenario(hyper_params: HyperParameters, settings: ExperimentSettings) -> TextScenarioInstance:
    """Builds the components of an experiment without running it."""
    loop = text_run_file(hyper_params, settings).experiment.loop
    assert isinstance(loop, TextTrainerSettings), "run_settings makes one"
    return build_text_instance(loop, Rng(hyper_params.seed).child("loop"))


def run_text_experiment(
    hyper_params: HyperParameters,
    settings: ExperimentSettings,
    runs_dir: Path,
    run_id: str | None,
    *,
    has_objects: bool = False,
    writers: Sequence[Keyword] = (),
) -> RunSummary:
    """Trains in a run directory; a run of this name goes on if there is one.

    With objects in its settings, such as a logger, only Python can resume it.
    """
    run_file = text_run_file(hyper_params, settings, writers)
    assert run_file.experiment.loop is not None, "run_settings makes one"
    slots = None
    if has_objects or registry.is_local("loop", run_file.experiment.loop.type):
        slots = Slots(make_loop=partial(text_trainer_class(hyper_params.trainer).from_settings, given=settings))
    is_new = settings.do_not_load_checkpoint or settings.test_run
    if run_id is not None and not is_new and RunDirectory.plan(runs_dir, run_id, force=True).config.is_file():
        iterations, workers = hyper_params.get("rl.num_iterations"), max(1, settings.num_rollout_workers)
        # A run that goes on may differ in these.
        changes = [
            f"experiment.budget.updates={iterations}",
            f"experiment.loop.hyper_params.rl.num_iterations={iterations}",
            f"experiment.loop.api.num_workers={workers}",
        ]
        launched = launch.resume(runs_dir, run_id, changes, run_file=run_file, slots=slots)
    else:
        launched = launch.start(run_file, runs_dir=runs_dir, run_id=run_id, force=is_new, slots=slots)
    try:
        return launched.trainer.train()
    finally:
        launched.trainer.close()
        launched.run.close()
