"""ML-Agents' trainers as the core's: a trainer of theirs is a trainer of ours whose stages call its hooks.

collect    trajectories are taken from the queues and go through `_process_trajectory` until `_is_ready_update`
update     `_update_policy`
publish    the policy goes into every policy queue
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from quintain.behaviors.buffer import AgentBuffer
from quintain.behaviors.parts import Hooks, Unconnected, UnconnectedSession
from quintain.behaviors.policy import Policy
from quintain.behaviors.queues import AgentManagerQueue
from quintain.behaviors.savers import BaseModelSaver, RunModelSaver
from quintain.behaviors.stats import StatsReporter
from quintain.behaviors.trainer_settings import TrainerSettings
from quintain.behaviors.trajectory import Trajectory
from quintain.data import fields as f
from quintain.data.trajectory import GROUP_REWARD
from quintain.envs.hosting import Hosting
from quintain.progress import Progress
from quintain.services.events import EventManager
from quintain.services.stats import EpisodeWindow
from quintain.services.stats import StatsReporter as CoreStats
from quintain.services.writers import WriterGroup
from quintain.trainers.base import Trainer as CoreTrainer
from quintain.trainers.global_streams import GlobalStreams
from quintain.trainers.records import Records
from quintain.world import Alone

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
        return self.progress.budget_env_steps

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
        return {"acting": self.policy.why_plain or "compiled", "learning": f"by the hooks of {type(self).__name__}"}

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


class RLTrainer(Trainer):
    """Trains by four hooks: what to make of a trajectory, when to learn, how to learn, and with which optimizer."""

    stages: ClassVar[tuple[str, ...]] = ("collect", "update", "publish")

    def __init__(
        self,
        brain_name: str,
        trainer_settings: TrainerSettings,
        training: bool,
        load: bool,
        artifact_path: str,
        reward_buff_cap: int = 1,
    ) -> None:
        super().__init__(brain_name, trainer_settings, training, load, artifact_path, reward_buff_cap)
        self.collected_rewards: dict[str, dict[str, float]] = {"environment": {}}
        self.collected_lengths: dict[str, int] = {}
        self.cumulative_returns_since_policy_update: list[float] = []
        # Twice what an update takes: a hook that never learns must not fill the memory.
        self.update_buffer = AgentBuffer(max_length=2 * trainer_settings.hyperparameters.buffer_size)
        self.model_saver = self.create_model_saver(self)
        self.optimizer: Any = None

    @staticmethod
    def create_model_saver(trainer: Trainer) -> BaseModelSaver:
        """Makes what keeps the models; override it to plug in another."""
        return RunModelSaver(trainer)

    @abstractmethod
    def create_optimizer(self) -> Any:
        """Makes what changes the policy; an object with `state_dict` is part of every checkpoint."""

    @abstractmethod
    def _update_policy(self) -> bool:
        """Changes the policy by what is in the buffer; says whether it did."""

    @abstractmethod
    def _is_ready_update(self) -> bool:
        """Says whether there is enough to learn from."""

    @abstractmethod
    def _process_trajectory(self, trajectory: Trajectory) -> None:
        """Takes in one trajectory: this counts it and must be called first; add what is to be learned from."""
        self.hooks.count(trajectory)
        rewards = self.collected_rewards["environment"]
        agent = trajectory.agent_id
        total = float(trajectory.fields[f.REWARD].sum() + trajectory.fields[GROUP_REWARD].sum())
        rewards[agent] = rewards.get(agent, 0.0) + total
        self.collected_lengths[agent] = self.collected_lengths.get(agent, 0) + len(trajectory)
        if trajectory.done_reached:
            self._update_end_episode_stats(agent)

    def _update_end_episode_stats(self, agent_id: str) -> None:
        """Reports the episode of an agent that ended."""
        total, length = self.collected_rewards["environment"].pop(agent_id), self.collected_lengths.pop(agent_id)
        self.reward_buffer.appendleft(total)
        self.cumulative_returns_since_policy_update.append(total)
        self.stats_reporter.add_stat("Environment/Cumulative Reward", total)
        self.stats_reporter.add_stat("Environment/Episode Length", length)

    def _append_to_update_buffer(self, agentbuffer: AgentBuffer) -> None:
        """Adds steps to the buffer, where there is training; the last batch is filled up beyond the last step."""
        if self.is_training:
            agentbuffer.resequence_and_append(self.update_buffer)

    def _clear_update_buffer(self) -> None:
        self.update_buffer.reset_agent()

    def add_policy(self, parsed_behavior_id: str, policy: Any) -> None:
        wrapped = policy if isinstance(policy, Policy) else Policy(policy, parsed_behavior_id)
        wrapped.behavior_id = parsed_behavior_id
        self.policies[parsed_behavior_id] = wrapped
        self.optimizer = self.create_optimizer()
        self.model_saver.register(wrapped)
        self.model_saver.register(self.optimizer)
        self.model_saver.initialize_or_load()

    def save_model(self) -> None:
        self.model_saver.save_checkpoint(self.brain_name, self.get_step)

    def end_episode(self) -> None:
        for rewards in self.collected_rewards.values():
            rewards.clear()
        self.collected_lengths.clear()

    @property
    def is_finished(self) -> bool:
        """Whether the budget is spent and the last batch learned; hooks that take nothing in any more end it too."""
        assert self.update_buffer.max_length is not None
        is_overdue = self.get_step >= self.get_max_steps + self.update_buffer.max_length
        return super().is_finished or (is_overdue and self.progress.is_between_cycles)

    def _stage_collect(self) -> bool:
        while not self._is_ready_update():
            if self.is_finished:
                return False
            if not self._drain() and not self.source.fill(self.store, self.should_stop):
                return False
        return True

    def _drain(self) -> bool:
        """Takes in all trajectories that wait; says whether there were any."""
        is_any = False
        for queue in self.trajectory_queues:
            for _ in range(queue.qsize()):
                try:
                    trajectory = queue.get_nowait()
                except AgentManagerQueue.Empty:
                    break
                self._process_trajectory(trajectory)
                is_any = True
        return is_any

    def _stage_update(self) -> bool:
        with self.stats.timer("update"):
            self.hooks.has_updated = self._update_policy()
        if self.hooks.has_updated:
            self.cumulative_returns_since_policy_update.clear()
        return True

    def _stage_publish(self) -> bool:
        self.progress.close_cycle(
            env_steps=self.get_step - self.progress.env_steps, episodes=self.hooks.episodes - self.progress.episodes
        )
        self.source.publish(self.progress.version, self.policy)
        if self.hooks.has_updated:
            for queue in self.policy_queues:
                queue.put(self.get_policy(queue.behavior_id))
        for name, value in {"Step": self.get_step, "Is Training": float(self.should_still_train)}.items():
            self.stats_reporter.set_stat(name, value)
        return True
