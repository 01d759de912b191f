"""Runs experiments: on the core's loop, or by hosting a trainer with a loop of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.errors import SettingsError
from quintain.experiments import hosted
from quintain.experiments.base_runs import stored_parameters, with_base_run, with_loaded_agents
from quintain.experiments.experiment_settings import DummyStatLogger, ExperimentSettings, WandbStatLogger
from quintain.experiments.factory import build_scenario_instance, build_trainer
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.parameters_base import CODE_KEY
from quintain.experiments.registry import build_protocol_handler, code_of, is_local
from quintain.experiments.scenario_names import trainer_data_kind
from quintain.experiments.tensordict_rl import TensorDictRlTrainer
from quintain.experiments.trainer import RunStatLogger, Trainer
from quintain.experiments.translate import run_settings
from quintain.runs import launch
from quintain.runs.assemble import Slots
from quintain.runs.parts import resolve_device
from quintain.services.files.run_directory import RunDirectory
from quintain.services.reporting.wandb_writer import RUN_ID
from quintain.settings.sources import PYTHON
from quintain.settings.tree import RunFile
from quintain.text.run import build_text_scenario, run_text_experiment
from quintain.trainers.hosted import HostedLoop

if TYPE_CHECKING:
    from quintain.runs.launch import Launched
    from quintain.services.reporting.writers import RunSummary
    from quintain.typing import JsonObject, Keyword


@dataclass(frozen=True)
class PreparedExperimentInfo:
    """What is known of an experiment before it runs."""

    total_num_iterations: int


def prepare_experiment(hyper_params: HyperParameters, **settings: Keyword) -> PreparedExperimentInfo:
    """Builds an experiment without running it, and returns the number of its iterations."""
    made = ExperimentSettings(**settings)
    if trainer_data_kind(hyper_params.trainer) == "text":
        build_text_scenario(hyper_params, made)
        return PreparedExperimentInfo(hyper_params.get("rl.num_iterations"))
    trainer = build_trainer(hyper_params, build_scenario_instance(hyper_params, made), made)
    return PreparedExperimentInfo(trainer.get_total_num_iterations())


def run_experiment(
    hyper_params: HyperParameters,
    *,
    run_id: str | None = None,
    output_dir: str | Path = "runs",
    use_wandb: bool = False,
    wandb_project: str | None = None,
    wandb_entity: str | None = None,
    wandb_tags: Sequence[str] | None = None,
    wandb_group: str | None = None,
    allow_auto_generated_run_id: bool = False,
    allow_resuming_wandb_run: bool = True,
    allow_overriding_wandb_config: bool = True,
    print_wandb_run_url: bool = False,
    **settings: Keyword,
) -> RunSummary:
    """Trains an experiment in a run directory; a run of this name goes on if there is one.

    With `use_wandb` rows are sent to Weights & Biases too, where a run that goes on continues its own. Further keywords
    are those of `ExperimentSettings`.
    """
    if use_wandb and run_id is None and not allow_auto_generated_run_id:
        raise SettingsError(
            "use_wandb: there is no run_id; give one, or set allow_auto_generated_run_id to True", code="E0205"
        )
    may_go_on = allow_resuming_wandb_run and allow_overriding_wandb_config
    if use_wandb and run_id is not None and not may_go_on and (Path(output_dir) / run_id / RUN_ID).is_file():
        raise SettingsError(
            f"allow_resuming_wandb_run, allow_overriding_wandb_config: one is False, and run {run_id} has a run of "
            "wandb that would go on; take another run_id",
            code="E0205",
        )
    made = ExperimentSettings(run_id=run_id, output_dir=str(output_dir), **settings)
    if use_wandb and made.test_run:
        raise SettingsError("use_wandb: a test run is not sent to Weights & Biases; set one of the two", code="E0205")
    also = WandbStatLogger(made.wandb_run) if made.wandb_run is not None else made.stat_logger
    made.stat_logger = RunStatLogger(None if isinstance(also, DummyStatLogger) else also)
    run: JsonObject = {"checkpoint": {"every_updates": made.checkpoint_period}, "device": made.device}
    if use_wandb:
        named = {"project": wandb_project, "entity": wandb_entity, "group": wandb_group, "tags": list(wandb_tags or ())}
        given = {name: value for name, value in named.items() if value}
        is_silent = made.silence_wandb and not print_wandb_run_url
        run["writers"] = ["console", {"type": "wandb", "silent": is_silent, **given}]
    hyper_params = with_base_run(hyper_params, Path(output_dir))
    if made.test_run:
        hyper_params = one_iteration(hyper_params)
        run_id = None if run_id is None else f"{run_id}_test"
    if trainer_data_kind(hyper_params.trainer) == "text":
        more = {"has_objects": bool(settings), "writers": run.get("writers", ())}
        return run_text_experiment(hyper_params, made, Path(output_dir), run_id, **more)
    resolve_device(made.device)
    agent_names = list(build_protocol_handler(hyper_params, made).agent_names)
    hyper_params = with_loaded_agents(hyper_params, agent_names, Path(output_dir))
    trainer = build_trainer(hyper_params, build_scenario_instance(hyper_params, made), made)
    if isinstance(trainer, TensorDictRlTrainer):
        return run_on_core(trainer, run, run_id)
    return run_hosted(trainer, run, run_id, has_objects=bool(settings))


def one_iteration(hyper_params: HyperParameters) -> HyperParameters:
    """Returns hyper-parameters of a test run: every loop is passed once."""
    values = hyper_params.to_dict()
    tests = min(1, hyper_params.get("rl.num_test_iterations"))
    values["rl"] = {**values["rl"], "num_iterations": 1, "num_test_iterations": tests}
    values["solo_agent"] = {**values["solo_agent"], "num_epochs": 1}
    return HyperParameters.from_dict(values)


def run_on_core(trainer: TensorDictRlTrainer, run: JsonObject, run_id: str | None) -> RunSummary:
    """Trains in the core's loop: the trainer's cycles are those of the loop, and its loss the loop's algorithm."""
    cls, given = type(trainer), trainer.settings
    has_loss = cls.core_algorithm == "loss_module"
    more = {"function": f"{cls.__module__}:{cls.__qualname__}"} if has_loss else {}
    settings = {**run_settings(trainer.hyper_params, cls.core_algorithm, **more), "run": run}
    if given.num_rollout_samples and given.rollout_sample_period <= trainer.hyper_params.get("rl.num_iterations"):
        sample = {"type": "sample_conversations", "num_conversations": given.num_rollout_samples}
        events = settings["experiment"]["behaviors"]["default"]["events"]
        events.append({**sample, "every_updates": given.rollout_sample_period})
    policy = trainer.scenario_instance.loaded_policy
    slots = None
    if has_loss or policy is not None or is_local(trainer.hyper_params):
        slots = Slots(policy=policy, make_algorithm=trainer.make_algorithm if has_loss else None)
    launched, is_done = start_or_resume(trainer, settings, "experiment.env", run_id, slots)
    loop = launched.trainer
    try:
        with loop.running():
            trainer.begin(loop)
            if not is_done:
                trainer.train()
        return launched.run.summary(loop)
    finally:
        loop.close()
        launched.run.close()


def run_hosted(trainer: Trainer, run: JsonObject, run_id: str | None, *, has_objects: bool) -> RunSummary:
    """Hosts the loop of a trainer's own: each of its iterations ends with a tick of the run."""
    hyper_params = trainer.hyper_params
    # What a loop without phases will do is not known; it ends where its train() returns.
    expected = trainer.get_total_num_iterations() or hyper_params.get("rl.num_iterations")
    loop = {"type": "hosted", "function": f"{hosted.__name__}:train", "until_returns": True, "kwargs": {}}
    experiment = {"seed": hyper_params.seed, "budget": {"updates": expected}, "loop": loop}
    slots = None
    if has_objects or is_local(hyper_params):
        function = partial(hosted.train, settings=trainer.settings)
        # Errors name the line of the trainer's own file.
        vars(function).update(__name__=f"{type(trainer).__name__}.train", __code__=type(trainer).train.__code__)
        slots = Slots(make_loop=partial(HostedLoop, function=function))
    settings = {"experiment": experiment, "run": run}
    launched, _ = start_or_resume(trainer, settings, "experiment.loop.kwargs", run_id, slots)
    try:
        return launched.trainer.train()
    finally:
        launched.trainer.close()
        launched.run.close()


def start_or_resume(
    trainer: Trainer, settings: JsonObject, holder: str, run_id: str | None, slots: Slots | None
) -> tuple[Launched, bool]:
    """Starts a run, or goes on with the one of this name; returns it, and whether nothing is left to do.

    `holder` is the address of the settings that have the hyper-parameters. A run that goes on may train for longer.
    """
    given, hyper_params = trainer.settings, trainer.hyper_params
    runs_dir, is_new = Path(given.output_dir), given.do_not_load_checkpoint or given.test_run
    place = settings
    for step in holder.split("."):
        place = place[step]
    directory = None if run_id is None else RunDirectory.plan(runs_dir, run_id, force=True)
    if directory is None or is_new or not directory.config.is_file():
        place["hyper_params"] = {**hyper_params.to_dict(include_package_meta=True), CODE_KEY: code_of(hyper_params)}
        run_file = RunFile.from_mapping(settings, origin=PYTHON)
        return launch.start(run_file, runs_dir=runs_dir, run_id=run_id, force=is_new, slots=slots), False
    place["hyper_params"], grown = stored_parameters(hyper_params, directory)
    changes = [f"{holder}.hyper_params.{address}={value}" for address, value in grown.items()]
    changes += [f"experiment.budget.{name}={value}" for name, value in settings["experiment"]["budget"].items()]
    status = directory.read_status()
    run_file = RunFile.from_mapping(settings, origin=PYTHON)
    launched = launch.resume(runs_dir, directory.run_id, changes, run_file=run_file, slots=slots)
    return launched, status is not None and status.state == "finished" and launched.trainer.is_finished
