"""ML-Agents' controller, factory and environment manager, over the core's joint trainer: there is one loop."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.algorithms.base import Algorithm
from quintain.behaviors.algorithm_trainer import POCATrainer, PPOTrainer, SACTrainer
from quintain.behaviors.held_stats import HeldStats
from quintain.behaviors.queues import AgentManagerQueue, TrajectoryQueueStore
from quintain.behaviors.rl_trainer import RLTrainer
from quintain.behaviors.run_options import RunOptions
from quintain.behaviors.trainer_settings import POCASettings, PPOSettings, SACSettings, TrainerSettings
from quintain.behaviors.translate import behavior_settings, run_settings
from quintain.behaviors.updating import UpdatingBeside
from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.envs.agents.env import AgentEnv, BaseEnv, behavior_of
from quintain.envs.agents.pettingzoo import adapted
from quintain.errors import SettingsError
from quintain.placements.learner_thread import LearnerThread
from quintain.placements.snapshots import copy_of
from quintain.rollouts.agent_collector import AgentCollector
from quintain.rollouts.agent_source import AgentSource, AgentWorld
from quintain.services.reporting.stats import StatsReporter
from quintain.settings.tree import RunFile
from quintain.trainers.behavior_session import BehaviorSession, prefix_of
from quintain.trainers.global_streams import GlobalStreams
from quintain.trainers.joint import JointTrainer

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
        """Takes settings by behaviour; `trainer_classes` has classes of your own by `trainer_type`, or by behaviour.

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
        """Returns the settings of a behaviour; those under `default` stand for behaviours that are not named."""
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
    """Holds the copies of an environment; stepping them is the world's business."""

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
    """Trains all behaviours of an environment until each has taken its steps."""

    def __init__(
        self,
        trainer_factory: TrainerFactory,
        output_path: str = "results",
        run_id: str = "ppo",
        param_manager: Any = None,
        train: bool = True,
        training_seed: int = 0,
    ) -> None:
        """Takes what ML-Agents' controller takes; the run is kept in `output_path/run_id`.

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
        """What a run holds, such as its lock, until it has ended."""
        self._joint: JointTrainer | None = None

    def start_learning(self, env_manager: EnvManager) -> RunSummary:
        """Trains to the end, or until asked to stop; everything is saved whatever happens."""
        joint = self._joint or self.prepare(env_manager)
        try:
            return joint.train()
        finally:
            joint.close()
            self.resources.close()

    def prepare(self, env_manager: EnvManager) -> JointTrainer:
        """Makes the trainers of all behaviours and joins them; a run that is to be loaded is put where it stood."""
        from quintain.runs.run import Run

        rng = Rng(max(self.training_seed, 0))
        GlobalStreams().seed(rng.child("global"))
        env = AgentEnv(env_manager.copies)
        described = {behavior_of(name): spec for name, spec in env_manager.training_behaviors.items()}
        self.trainers = {name: self._trainer(name, spec) for name, spec in described.items()}
        run_file = self._run_file(env_manager)
        run = Run(run_file, [], runs_dir=Path(self.output_path), is_kept=True, has_objects=True)
        self.resources.callback(run.close)
        stats = StatsReporter(run.writer)
        world = self._world(env, rng, stats)
        joint = JointTrainer(self.trainers, world, self._budgets(), stats=stats, session=run, writer=run.writer)
        for name, trainer in self.trainers.items():
            session = BehaviorSession(name, run)
            session.joint = joint
            trainer.session = session
            trainer.source = AgentSource(name, world, self._needs, lambda: joint.should_stop() or joint.has_failed)
        if self.trainer_factory.load_model:
            joint.load_checkpoint(Path(self.output_path) / self.run_id)
        return joint

    def advance(self, env_manager: EnvManager) -> int:
        """Trains for one update of one behaviour; returns the steps that agents took."""
        joint = self._joint or self.prepare(env_manager)
        self._joint = joint
        before = joint.progress.env_steps
        joint.advance()
        return joint.progress.env_steps - before

    def _needs(self, behavior: str) -> bool:
        return not self.trainers[behavior].is_finished

    def _trainer(self, name: str, spec: Any) -> RLTrainer:
        trainer = self.trainer_factory.generate(name)
        trainer.add_policy(name, trainer.create_policy(name, spec))
        algorithm = trainer.optimizer if isinstance(trainer.optimizer, Algorithm) else None
        trainer.accelerated = accelerate(trainer.policy, algorithm)
        trainer.publish_policy_queue(AgentManagerQueue(name, maxlen=1))
        return trainer

    def _world(self, env: AgentEnv, rng: Rng, stats: StatsReporter) -> AgentWorld:
        collectors, stores = {}, {}
        for name, trainer in self.trainers.items():
            horizon = trainer.trainer_settings.time_horizon
            store = TrajectoryQueueStore(name, env.specs[name], horizon)
            trainer.subscribe_trajectory_queue(store.queue)
            trainer.store = stores[name] = store
            trainer.stats = held = HeldStats(stats, prefix_of(name, len(self.trainers)))
            if _learns_beside(trainer):
                acting = copy_of(trainer.policy)
                trainer.learn_beside(UpdatingBeside(trainer, LearnerThread(name), acting, store, held))
            collectors[name] = AgentCollector(
                trainer.published_policy,
                horizon,
                rng.child("behaviors").child(name).child("acting"),
                trainer.episodes.extend,
                f.MATE_FIELDS if trainer.follows_groups else {},
            )
        return AgentWorld(env, collectors, stores)

    def _budgets(self) -> dict[str, int]:
        return {name: trainer.trainer_settings.max_steps for name, trainer in self.trainers.items()}

    def _run_file(self, env_manager: EnvManager) -> RunFile:
        """Returns what the run is, as settings of ours, for its directory and its manifest.

        How long it trains is not among them: that may be changed when it is loaded, and is the trainers' own.
        """
        made = type(env_manager.copies[0])
        behaviors: dict[str, Any] = {}
        placement = "local"
        for name, trainer in self.trainers.items():
            settings = trainer.trainer_settings
            is_known = isinstance(settings.hyperparameters, PPOSettings | POCASettings | SACSettings)
            numbers = {"time_horizon": settings.time_horizon, "buffer_size": settings.hyperparameters.buffer_size}
            plain = {
                "algorithm": {"type": "ppo", "batch_size": settings.hyperparameters.batch_size},
                "rollout": {"type": "trajectories", **numbers},
            }
            behaviors[name] = behavior_settings(settings, settings.max_steps) if is_known else plain
            if _learns_beside(trainer):
                behaviors[name]["rollout"]["max_staleness"] = 1
                placement = "threads"
        experiment = {
            "seed": max(self.training_seed, 0),
            "env": {"type": "agents", "id": f"{made.__module__}:{made.__qualname__}"},
            "behaviors": behaviors,
        }
        run = run_settings(RunOptions(), [trainer.trainer_settings for trainer in self.trainers.values()])
        run |= {"id": self.run_id, "writers": [], "placement": {"type": placement}}
        return RunFile.from_mapping({"experiment": experiment, "run": run})


def _learns_beside(trainer: RLTrainer) -> bool:
    return trainer.threaded and trainer.is_training
