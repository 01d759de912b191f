"""ML-Agents' controller, factory and environment manager: they make learners, which a run of the core trains."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.behaviors.algorithm_trainer import AlgorithmTrainer, POCATrainer, PPOTrainer, SACTrainer
from quintain.behaviors.hooks import ByHooks, HookAlgorithm
from quintain.behaviors.queues import AgentManagerQueue
from quintain.behaviors.rl_trainer import RLTrainer
from quintain.behaviors.run_options import RunOptions
from quintain.behaviors.trainer_settings import TrainerSettings
from quintain.behaviors.translate import behavior_settings, run_settings
from quintain.core.rng import Rng
from quintain.envs.agents.env import AgentEnv, BaseEnv, behavior_of
from quintain.envs.agents.pettingzoo import adapted
from quintain.errors import SettingsError
from quintain.runs.assemble import Slots, assemble
from quintain.settings.tree import RunFile
from quintain.trainers.base import Trainer as CoreTrainer
from quintain.trainers.global_streams import GlobalStreams

if TYPE_CHECKING:
    from quintain.services.reporting.writers import RunSummary

TRAINER_CLASSES: Mapping[str, type[RLTrainer]] = {"ppo": PPOTrainer, "poca": POCATrainer, "sac": SACTrainer}


class TrainerFactory:
    """Makes the trainer of each behaviour from its settings."""

    def __init__(
        self,
        trainer_config: Mapping[str, TrainerSettings],
        output_path: str = "results",
        train_model: bool = True,
        load_model: bool = False,
        seed: int = 0,
        param_manager: Any = None,
        *,
        trainer_classes: Mapping[str, type[RLTrainer]] | None = None,
    ) -> None:
        """Takes settings by behaviour; `trainer_classes` has your own classes by `trainer_type`, or by behaviour.

        `param_manager` has no effect: there are no lessons yet.
        """
        self.trainer_config = dict(trainer_config)
        self.output_path = output_path
        self.train_model = train_model
        self.load_model = load_model
        self.seed = seed
        self.param_manager = param_manager
        self.trainer_classes = {**TRAINER_CLASSES, **(trainer_classes or {})}

    def settings_of(self, behavior_name: str) -> TrainerSettings:
        """Returns the settings of a behaviour; those under `default` apply to behaviours that are not named."""
        found = self.trainer_config.get(behavior_name) or self.trainer_config.get("default")
        if found is None:
            known = ", ".join(self.trainer_config) or "none"
            raise SettingsError(
                f'the environment has agents of behaviour "{behavior_name}", and there are settings for {known}',
                code="E0227",
            )
        return found

    def generate(self, behavior_name: str) -> RLTrainer:
        settings = self.settings_of(behavior_name)
        chosen: Any = self.trainer_classes.get(behavior_name) or self.trainer_classes.get(settings.trainer_type)
        if chosen is None:
            known = ", ".join(TRAINER_CLASSES)
            raise SettingsError(f"trainer_type {settings.trainer_type} is none of {known}", code="E0228")
        artifact_path = str(Path(self.output_path) / behavior_name)
        given = {
            "brain_name": behavior_name,
            "behavior_name": behavior_name,
            "reward_buff_cap": 1,
            "trainer_settings": settings,
            "training": self.train_model,
            "load": self.load_model,
            "seed": self.seed,
            "artifact_path": artifact_path,
        }
        # By name: trainers with and without a seed take them in different orders.
        taken = inspect.signature(chosen).parameters
        trainer: RLTrainer = chosen(**{name: value for name, value in given.items() if name in taken})
        return trainer


class EnvManager:
    """Holds the copies of an environment; the core steps them."""

    def __init__(self, copies: Sequence[Any]) -> None:
        self.copies: list[BaseEnv] = [adapted(copy, number) for number, copy in enumerate(copies)]

    @property
    def training_behaviors(self) -> dict[str, Any]:
        """Returns the specs of all behaviours, by full id."""
        return {name: spec for copy in self.copies for name, spec in copy.behavior_specs.items()}

    def reset(self, config: Any = None) -> None:
        for copy in self.copies:
            copy.reset()

    def close(self) -> None:
        for copy in self.copies:
            copy.close()


class SimpleEnvManager(EnvManager):
    """Holds one environment in this process."""

    def __init__(self, env: Any, env_params: Any = None) -> None:
        super().__init__([env])
        self.env_params = env_params


class TrainerController:
    """Trains all behaviours of an environment until the budget of each is spent."""

    def __init__(
        self,
        trainer_factory: TrainerFactory,
        output_path: str = "results",
        run_id: str = "ppo",
        param_manager: Any = None,
        train: bool = True,
        training_seed: int = 0,
    ) -> None:
        """Takes the arguments of ML-Agents' controller; the run is written to `output_path/run_id`.

        `param_manager` has no effect: there are no lessons yet.
        """
        self.trainer_factory = trainer_factory
        self.output_path = output_path
        self.run_id = run_id
        self.param_manager = param_manager
        self.train_model = train
        self.training_seed = training_seed
        self.trainers: dict[str, RLTrainer] = {}
        self.resources = ExitStack()
        """Resources of a run, such as its lock, until it has ended."""
        self._core: CoreTrainer | None = None

    def start_learning(self, env_manager: EnvManager) -> RunSummary:
        """Trains to the end, or until asked to stop; everything is saved in any case."""
        core = self._core or self.prepare(env_manager)
        try:
            return core.train()
        finally:
            core.close()
            self.resources.close()

    def prepare(self, env_manager: EnvManager) -> CoreTrainer:
        """Makes the trainers of all behaviours and the loop over them; restores a run that is to be loaded."""
        from quintain.runs.run import Run

        # Before the trainers: their classes may draw from the global generators.
        GlobalStreams().seed(Rng(max(self.training_seed, 0)).child("global"))
        env = AgentEnv(env_manager.copies)
        described = {behavior_of(name): spec for name, spec in env_manager.training_behaviors.items()}
        self.trainers = {name: self._trainer(name, spec) for name, spec in described.items()}
        run_file = self._run_file(env_manager)
        run = Run(run_file, [], runs_dir=Path(self.output_path), is_kept=True, has_objects=True)
        self.resources.callback(run.close)
        core = assemble(run_file, run, run.writer, Slots(env=env, learners=self.trainers))
        if self.trainer_factory.load_model:
            core.load_checkpoint(Path(self.output_path) / self.run_id)
        self._core = core
        return core

    def advance(self, env_manager: EnvManager) -> int:
        """Trains for one update of one behaviour; returns the number of agents' steps."""
        core = self._core or self.prepare(env_manager)
        before = core.progress.env_steps
        core.advance()
        return core.progress.env_steps - before

    def _trainer(self, name: str, spec: Any) -> RLTrainer:
        trainer = self.trainer_factory.generate(name)
        trainer.add_policy(name, trainer.create_policy(name, spec))
        trainer.publish_policy_queue(AgentManagerQueue(name, maxlen=1))
        return trainer

    def _run_file(self, env_manager: EnvManager) -> RunFile:
        """Returns the run as settings, for its directory and its manifest.

        The budget is not included: it may change when the run is loaded, and belongs to the trainers.
        """
        made = type(env_manager.copies[0])
        behaviors = {name: _behavior(trainer) for name, trainer in self.trainers.items()}
        is_threaded = any(each["rollout"].get("max_staleness") for each in behaviors.values())
        experiment = {
            "seed": max(self.training_seed, 0),
            "env": {"type": "agents", "id": f"{made.__module__}:{made.__qualname__}"},
            "behaviors": behaviors,
        }
        run = run_settings(RunOptions(), [trainer.trainer_settings for trainer in self.trainers.values()])
        run |= {"id": self.run_id, "writers": [], "placement": {"type": "threads" if is_threaded else "local"}}
        return RunFile.from_mapping({"experiment": experiment, "run": run})


def _behavior(trainer: RLTrainer) -> dict[str, Any]:
    """Returns the settings of a behaviour, which name the class that trains it."""
    settings, made = trainer.trainer_settings, type(trainer)
    blocks: dict[str, Any]
    if isinstance(trainer, AlgorithmTrainer):
        blocks = behavior_settings(settings, settings.max_steps)
    else:
        numbers = settings.hyperparameters
        blocks = {
            "algorithm": {"type": _place(HookAlgorithm), "hyperparameters": numbers.model_dump(mode="json")},
            "rollout": {
                "type": "trajectories",
                "time_horizon": settings.time_horizon,
                "buffer_size": numbers.buffer_size,
            },
            "events": [],
        }
    if trainer.threaded and trainer.is_training:
        blocks["rollout"]["max_staleness"] = 1
    return {**blocks, "trainer": {"type": _place(ByHooks), "class_name": _place(made)}}


def _place(part: type) -> str:
    return f"{part.__module__}:{part.__qualname__}"
