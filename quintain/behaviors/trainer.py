"""ML-Agents' abstract trainer: a learner of the core with its names and properties."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import Any, ClassVar

from quintain.behaviors.policy import Policy
from quintain.behaviors.queues import AgentManagerQueue
from quintain.behaviors.stats import StatsReporter
from quintain.behaviors.trainer_settings import TrainerSettings
from quintain.behaviors.trajectory import Trajectory
from quintain.core.progress import Progress
from quintain.errors import RunDirectoryError
from quintain.services.events import EventManager
from quintain.services.reporting.stats import WINDOW_SIZE, EpisodeWindow
from quintain.services.reporting.stats import StatsReporter as CoreStats
from quintain.services.reporting.writers import WriterGroup
from quintain.trainers.learner import ReadyLearner


class Trainer(ReadyLearner, ABC):
    """Trains the policies of one behaviour."""

    training_parts: ClassVar[tuple[str, ...]] = ("policy", "store", "hooks", "events")

    def __init__(
        self,
        brain_name: str,
        trainer_settings: TrainerSettings,
        training: bool,
        load: bool,
        artifact_path: str,
        reward_buff_cap: int = 1,
    ) -> None:
        """Makes a trainer of a behaviour; without `training` its policies only act."""
        # `add_policy` brings policy and algorithm, and a run the others.
        later: Any = None
        super().__init__(
            brain_name,
            later,
            later,
            later,
            Progress(trainer_settings.max_steps),
            events=EventManager(),
            guard=later,
            episodes=EpisodeWindow(WINDOW_SIZE),
            own_budget=trainer_settings.max_steps,
        )
        self.brain_name = brain_name
        self.trainer_settings = trainer_settings
        self.is_training = training
        self.load = load
        self.artifact_path = artifact_path
        self.summary_freq = trainer_settings.summary_freq
        self.policies: dict[str, Policy] = {}
        self.policy_queues: list[AgentManagerQueue[Policy]] = []
        self.trajectory_queues: list[AgentManagerQueue[Trajectory]] = []
        self.stats = CoreStats(WriterGroup([]))
        self.stats_reporter = StatsReporter(brain_name, lambda key, value: self.stats.add_stat(key, value))
        self.reward_buffer: deque[float] = deque(maxlen=max(reward_buff_cap, 1))

    @property
    def parameters(self) -> TrainerSettings:
        return self.trainer_settings

    @property
    def get_max_steps(self) -> int:
        return self.progress.budget_env_steps or 0

    @property
    @abstractmethod
    def get_step(self) -> int:
        """Number of processed steps of agents."""

    @property
    def threaded(self) -> bool:
        return self.trainer_settings.threaded

    @property
    def should_still_train(self) -> bool:
        return self.is_training and self.get_step <= self.get_max_steps

    @property
    def is_finished(self) -> bool:
        return not self.is_training or super().is_finished

    @property
    def is_connected(self) -> bool:
        """Whether a run trains it; otherwise trajectories come from its queues only."""
        return "trainer" in self.__dict__

    def save_checkpoint(self) -> Path:
        """Commits a checkpoint of the whole run now and returns its directory."""
        if not self.is_connected:
            raise RunDirectoryError(
                "this trainer belongs to no run, so there is nowhere to save it; use a TrainerController"
            )
        return self.trainer.save_checkpoint()

    def get_policy(self, name_behavior_id: str) -> Policy:
        return self.policies[name_behavior_id]

    def publish_policy_queue(self, policy_queue: AgentManagerQueue[Policy]) -> None:
        """Adds a queue for new versions of the policy."""
        self.policy_queues.append(policy_queue)

    def subscribe_trajectory_queue(self, trajectory_queue: AgentManagerQueue[Trajectory]) -> None:
        """Adds a queue of trajectories, in addition to the environment's."""
        self.trajectory_queues.append(trajectory_queue)

    @staticmethod
    def get_trainer_name() -> str:
        return "trainer"

    @abstractmethod
    def create_policy(self, parsed_behavior_id: str, behavior_spec: Any) -> Any:
        """Makes a policy for a behaviour, ours or a wrapper of it; changes nothing."""

    @abstractmethod
    def add_policy(self, parsed_behavior_id: str, policy: Any) -> None:
        """Sets the policy to train."""

    @abstractmethod
    def save_model(self) -> None:
        """Saves the trained models."""

    @abstractmethod
    def end_episode(self) -> None:
        """Drops the data of episodes that were interrupted from outside."""
