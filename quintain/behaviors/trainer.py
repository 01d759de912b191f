"""ML-Agents' abstract trainer as the core's: its names and properties, and the parts that the core's loop needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from quintain.behaviors.parts import Hooks, Unconnected, UnconnectedSession
from quintain.behaviors.policy import Policy
from quintain.behaviors.queues import AgentManagerQueue
from quintain.behaviors.stats import StatsReporter
from quintain.behaviors.trainer_settings import TrainerSettings
from quintain.behaviors.trajectory import Trajectory
from quintain.compiled.plug import Accelerated
from quintain.core.process_group import Alone
from quintain.core.progress import Progress
from quintain.envs.hosts.hosting import Hosting
from quintain.services.events import EventManager
from quintain.services.reporting.stats import EpisodeWindow
from quintain.services.reporting.stats import StatsReporter as CoreStats
from quintain.services.reporting.writers import WriterGroup
from quintain.trainers.base import Trainer as CoreTrainer
from quintain.trainers.global_streams import GlobalStreams
from quintain.trainers.records import Records

if TYPE_CHECKING:
    from quintain.policies.base import Policy as CorePolicy

MAX_REWARDS = 100
"""Episodes whose returns are remembered at least."""


class Trainer(CoreTrainer, ABC):
    """Trains the policies of one behaviour."""

    training_parts: ClassVar[tuple[str, ...]] = ("progress", "policy", "store", "hooks", "source", "global_streams")
    record_parts: ClassVar[tuple[str, ...]] = ("records", "episodes")
    rank_parts: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        brain_name: str,
        trainer_settings: TrainerSettings,
        training: bool,
        load: bool,
        artifact_path: str,
        reward_buff_cap: int = 1,
    ) -> None:
        """Makes a trainer of a behaviour; without `training` it only lets its policies act."""
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
        self._install_defaults()

    def _install_defaults(self) -> None:
        """Gives the loop what it needs before anybody connects the trainer to an environment."""
        self.progress = Progress(self.trainer_settings.max_steps)
        self.source = Unconnected()
        self.store: Any = Unconnected()
        self.session = UnconnectedSession()
        self.events = EventManager()
        self.firings = self.events.firings
        self.episodes = EpisodeWindow(MAX_REWARDS)
        self.hosting = Hosting()
        self.accelerated = Accelerated()
        self.faults = self.hosting.faults
        self.world = Alone()
        self.writer = WriterGroup([])
        self.records = Records()
        self.global_streams = GlobalStreams()
        self.hooks = Hooks(self)
        self.batch = None
        self.stop_reason = ""

    @property
    def policy(self) -> CorePolicy:  # type: ignore[override]  # found by its behaviour
        """The policy that is trained."""
        return next(iter(self.policies.values())).core

    @property
    def parameters(self) -> TrainerSettings:
        return self.trainer_settings

    @property
    def get_max_steps(self) -> int:
        return self.progress.budget_env_steps or 0

    @property
    def get_step(self) -> int:
        """Steps of agents that were taken in."""
        return self.hooks.step

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
    def paths(self) -> dict[str, str]:
        acting = self.accelerated.acting.fallback_reason or "compiled"
        return {"acting": acting, "learning": f"by the hooks of {type(self).__name__}"}

    def get_policy(self, name_behavior_id: str) -> Policy:
        return self.policies[name_behavior_id]

    def publish_policy_queue(self, policy_queue: AgentManagerQueue[Policy]) -> None:
        """Takes a queue that every new version of the policy goes into."""
        self.policy_queues.append(policy_queue)

    def subscribe_trajectory_queue(self, trajectory_queue: AgentManagerQueue[Trajectory]) -> None:
        """Takes a queue that trajectories are read from."""
        self.trajectory_queues.append(trajectory_queue)

    def begin_from_policy(self) -> None:
        """Needs nothing: hooks look at the policy as it is."""

    @staticmethod
    def get_trainer_name() -> str:
        return "trainer"

    @abstractmethod
    def create_policy(self, parsed_behavior_id: str, behavior_spec: Any) -> Any:
        """Makes a policy for a behaviour, ours or one around it; changes nothing."""

    @abstractmethod
    def add_policy(self, parsed_behavior_id: str, policy: Any) -> None:
        """Takes a policy over and prepares to train it."""

    @abstractmethod
    def save_model(self) -> None:
        """Keeps the trained models."""

    @abstractmethod
    def end_episode(self) -> None:
        """Forgets what agents have collected in episodes that were cut from outside."""
