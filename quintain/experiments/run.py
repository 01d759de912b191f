"""Runs experiments: builds the components, and trains on the core or hosts a trainer of a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from quintain.core.rng import Rng
from quintain.envs.settings import ScenarioSettings
from quintain.errors import SettingsError
from quintain.experiments.base_runs import load_agents, with_base_run, with_loaded_agents
from quintain.experiments.experiment_settings import ExperimentSettings
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.registry import build_protocol_handler, get_trainer_class
from quintain.experiments.scenario_env import ScenarioEnv
from quintain.experiments.scenario_names import scenario_named, trainer_data_kind
from quintain.experiments.tensordict_rl import TensorDictRlTrainer
from quintain.experiments.trainer import Agent, RunStatLogger, ScenarioInstance, Trainer
from quintain.experiments.translate import num_rows, run_settings, team_settings
from quintain.policies.networks import linear
from quintain.policies.team import TeamPolicy
from quintain.runs import launch
from quintain.runs.assemble import Slots
from quintain.runs.hosted import host
from quintain.services.files.run_directory import RunDirectory
from quintain.settings.sources import PYTHON
from quintain.settings.tree import RunFile
from quintain.text.run import build_text_scenario, run_text_experiment

if TYPE_CHECKING:
    from quintain.services.reporting.writers import RunSummary
    from quintain.trainers.hosted import HostedLoop
    from quintain.typing import Keyword, Keywords

AGENT_PARTS: dict[str, tuple[str, ...]] = {
    "rl": ("body", "policy_head", "value_head"),
    "solo_agent": ("body", "solo_head"),
    "": (),
}
"""The parts of agents that each type of trainer needs."""


@dataclass(frozen=True)
class PreparedExperimentInfo:
    """What is known of an experiment before it runs."""

    total_num_iterations: int


def register_trainer_type(name: str, parts: tuple[str, ...]) -> None:
    """Makes a value of `trainer_type` available, with the parts that it needs of every agent."""
    if unknown := set(parts) - {"body", "policy_head", "value_head", "solo_head"}:
        raise SettingsError(
            f"trainer_type {name}: agents have no part {', '.join(sorted(unknown))}; "
            "expected body, policy_head, value_head or solo_head",
            code="E0204",
        )
    AGENT_PARTS[name] = parts


def build_scenario_instance(hyper_params: HyperParameters, settings: ExperimentSettings) -> ScenarioInstance:
    """Builds protocol, environments and agents, in this order; agents have the parts of the trainer's type.

    Agents with `load_checkpoint_and_parameters` have the weights of their runs, which are in `settings.output_dir`.
    """
    protocol = build_protocol_handler(hyper_params, settings)
    trainer_type: str = get_trainer_class(hyper_params.trainer).trainer_type  # type: ignore[attr-defined]
    if trainer_type not in AGENT_PARTS:
        raise SettingsError(
            f'trainer_type "{trainer_type}" is unknown; register_trainer_type("{trainer_type}", parts) adds it',
            code="E0204",
        )
    wanted = AGENT_PARTS[trainer_type]
    if not wanted or scenario_named(hyper_params.scenario).data_kind != "tensors":
        return ScenarioInstance(protocol)
    rng = Rng(hyper_params.seed)
    lanes = num_rows(hyper_params, protocol) * len(protocol.agent_names)
    env_settings = ScenarioSettings(hyper_params=hyper_params.to_dict(), num_lanes=lanes)
    train, test = (ScenarioEnv(env_settings, lanes, rng.child(name)) for name in ("env", "test_env"))
    policy = TeamPolicy(team_settings(hyper_params, protocol), train.spec, rng.child("policy"))
    loaded = [] if settings.do_not_load_checkpoint else load_agents(policy, hyper_params, Path(settings.output_dir))
    agents = {}
    for number, name in enumerate(protocol.agent_names):
        made: dict[str, nn.Module] = {}
        if name in policy.agents:
            team_agent = policy.agents[name]
            made = {part: getattr(team_agent, part) for part in wanted if part != "solo_head"}
            if "solo_head" in wanted:
                width = policy.settings.hidden_sizes[-1]
                made["solo_head"] = linear(width, 2, 0.01, rng.torch_generator("solo_head", number))
        agents[name] = Agent(name, **made, is_random=name in policy.settings.random_agents)
    return ScenarioInstance(protocol, agents, train, test, policy if loaded else None)


def build_trainer(
    hyper_params: HyperParameters, scenario_instance: ScenarioInstance, settings: ExperimentSettings
) -> Trainer:
    """Makes the trainer of an experiment."""
    made: Trainer = get_trainer_class(hyper_params.trainer)(hyper_params, scenario_instance, settings)
    return made


def prepare_experiment(hyper_params: HyperParameters, **settings: Keyword) -> PreparedExperimentInfo:
    """Builds an experiment without running it, and returns the number of its iterations."""
    made = ExperimentSettings(**settings)
    if trainer_data_kind(hyper_params.trainer) == "text":
        build_text_scenario(hyper_params, made)
        return PreparedExperimentInfo(hyper_params.get("rl.num_iterations"))
    trainer = build_trainer(hyper_params, build_scenario_instance(hyper_params, made), made)
    return PreparedExperimentInfo(trainer.get_total_num_iterations())


def run_experiment(
    hyper_params: HyperParameters, *, run_id: str | None = None, output_dir: str | Path = "runs", **settings: Keyword
) -> RunSummary:
    """Trains an experiment in a run directory; a run of this name goes on if there is one.

    Further keywords are those of `ExperimentSettings`.
    """
    made = ExperimentSettings(run_id=run_id, output_dir=str(output_dir), **{"stat_logger": RunStatLogger(), **settings})
    hyper_params = with_base_run(hyper_params, Path(output_dir))
    if trainer_data_kind(hyper_params.trainer) == "text":
        return run_text_experiment(hyper_params, made, Path(output_dir), run_id, has_objects=bool(settings))
    agent_names = list(build_protocol_handler(hyper_params, made).agent_names)
    hyper_params = with_loaded_agents(hyper_params, agent_names, Path(output_dir))
    trainer = build_trainer(hyper_params, build_scenario_instance(hyper_params, made), made)
    if isinstance(trainer, TensorDictRlTrainer):
        return run_on_core(trainer, Path(output_dir), run_id)
    return run_hosted(trainer, output_dir, run_id)


def run_on_core(trainer: TensorDictRlTrainer, runs_dir: Path, run_id: str | None) -> RunSummary:
    """Trains in the core's loop: the trainer's cycles are those of the loop, and its loss the loop's algorithm."""
    cls = type(trainer)
    has_loss = cls.core_algorithm == "loss_module"
    more = {"function": f"{cls.__module__}:{cls.__qualname__}"} if has_loss else {}
    settings = run_settings(trainer.hyper_params, cls.core_algorithm, **more)
    settings["run"] = {"checkpoint": {"every_updates": trainer.settings.checkpoint_period}}
    run_file = RunFile.from_mapping(settings, origin=PYTHON)
    policy = trainer.scenario_instance.loaded_policy
    slots = None
    if has_loss or policy is not None:
        slots = Slots(policy=policy, make_algorithm=trainer.make_algorithm if has_loss else None)
    planned = RunDirectory.plan(runs_dir, run_id, force=True) if run_id is not None else None
    status = None
    if planned is not None and run_id is not None and planned.config.is_file():
        status = planned.read_status()
        launched = launch.resume(runs_dir, run_id, run_file=run_file, slots=slots)
    else:
        launched = launch.start(run_file, runs_dir=runs_dir, run_id=run_id, slots=slots)
    loop = launched.trainer
    try:
        is_done = status is not None and status.state == "finished" and loop.is_finished
        with loop.running():
            trainer.begin(loop)
            if not is_done:
                trainer.train()
        return launched.run.summary(loop)
    finally:
        loop.close()
        launched.run.close()


def run_hosted(trainer: Trainer, runs_dir: str | Path, run_id: str | None) -> RunSummary:
    """Hosts the loop of a trainer's own: each of its iterations ends with a tick of the run."""
    settings = trainer.settings

    def train(loop: HostedLoop, hyper_params: dict[str, object]) -> None:
        parameters = HyperParameters.from_dict(hyper_params)
        own = build_trainer(parameters, build_scenario_instance(parameters, settings), settings)
        own.host = loop
        own.train()
        own.keep_parts()
        own.end_iteration()

    changes: Keywords = {"checkpoint.every_updates": settings.checkpoint_period}
    return host(
        train,
        run_id=run_id,
        resume=run_id is not None,
        runs_dir=runs_dir,
        kwargs={"hyper_params": trainer.hyper_params.to_dict()},
        updates=trainer.get_total_num_iterations() + 1,
        seed=trainer.hyper_params.seed,
        **changes,
    )
