"""ML-Agents' trainer by hooks: a learner whose stages call them.

collect    trajectories go through `_process_trajectory` until `_is_ready_update` update     `_update_policy` publish
the policy goes into every policy queue

All hooks run in the thread that called the controller. With `threaded`, a collector thread acts asynchronously: it
fills a second block of trajectories with the policy before the update.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from quintain.algorithms.base import Algorithm
from quintain.behaviors.buffer import AgentBuffer
from quintain.behaviors.hooks import Hooks, StrictGuard
from quintain.behaviors.policy import Policy
from quintain.behaviors.queues import TrajectoryQueue, TrajectoryQueues
from quintain.behaviors.savers import BaseModelSaver, RunModelSaver
from quintain.behaviors.trainer import Trainer
from quintain.behaviors.trainer_settings import OnPolicyHyperparameterSettings, TrainerSettings
from quintain.behaviors.trajectory import Trajectory
from quintain.data import fields as f
from quintain.data.trajectory import GROUP_REWARD
from quintain.typing import Stateful

if TYPE_CHECKING:
    from quintain.compiled.plug import Accelerated
    from quintain.rollouts.store import RolloutStore
    from quintain.services.events import EventManager
    from quintain.trainers.guard import UpdateGuard
    from quintain.typing import Metrics


class RLTrainer(Trainer):
    """Trains by four hooks: process a trajectory, decide when to update, update, and make an optimizer."""

    follows_groups: ClassVar[bool] = False

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
        self.hooks = Hooks(self)

    @staticmethod
    def create_model_saver(trainer: Trainer) -> BaseModelSaver:
        """Makes the model saver; override it to plug in another."""
        return RunModelSaver(trainer)

    @abstractmethod
    def create_optimizer(self) -> Any:
        """Makes the optimizer; an object with `state_dict` is part of every checkpoint."""

    @abstractmethod
    def _update_policy(self) -> bool:
        """Updates the policy from the buffer; returns whether it did."""

    @abstractmethod
    def _is_ready_update(self) -> bool:
        """Whether there is enough data for an update."""

    def _steps_per_update(self) -> int | None:
        """Returns the number of new steps in an update, if it is known; None: as many as the previous one needed.

        With `threaded`, agents take so many steps during an update.
        """
        return None

    def _complete_batch(self) -> None:
        """Completes the batch before the update; nothing by default."""

    @abstractmethod
    def _process_trajectory(self, trajectory: Trajectory) -> None:
        """Processes one trajectory: call this first, because it counts the steps; then add the data to learn from."""
        self._count(len(trajectory), int(trajectory.done_reached))
        rewards = self.collected_rewards["environment"]
        agent = trajectory.agent_id
        total = float(trajectory.fields[f.REWARD].sum() + trajectory.fields[GROUP_REWARD].sum())
        rewards[agent] = rewards.get(agent, 0.0) + total
        self.collected_lengths[agent] = self.collected_lengths.get(agent, 0) + len(trajectory)
        if trajectory.done_reached:
            self._update_end_episode_stats(agent)

    def _count(self, num_steps: int, num_episodes: int) -> None:
        """Counts processed steps; summaries and models whose interval ends with them come first."""
        self._maybe_write_summary(self.get_step + num_steps)
        self._maybe_save_model(self.get_step + num_steps)
        self.hooks.count(num_steps, num_episodes)

    def _maybe_write_summary(self, step_after_process: int) -> None:
        """Writes a summary before the trajectory that reaches the next multiple of `summary_freq`, never at first."""
        boundary = _next_multiple(self.get_step, self.summary_freq)
        if self.get_step and step_after_process >= boundary:
            self.stats_reporter.write_stats(boundary)

    def _maybe_save_model(self, step_after_process: int) -> None:
        """Calls a user's saver at intervals; the run commits its checkpoints itself, between stages."""
        interval = self.trainer_settings.checkpoint_interval
        if self.get_step and step_after_process >= _next_multiple(self.get_step, interval):
            self._checkpoint()

    def _checkpoint(self) -> None:
        if not isinstance(self.model_saver, RunModelSaver):
            self.model_saver.save_checkpoint(self.brain_name, self.get_step)

    def _update_end_episode_stats(self, agent_id: str) -> None:
        """Reports a completed episode of an agent."""
        self._report_episode(self.collected_rewards["environment"].pop(agent_id), self.collected_lengths.pop(agent_id))

    def _report_episode(self, total: float, length: int) -> None:
        self.reward_buffer.appendleft(total)
        self.cumulative_returns_since_policy_update.append(total)
        self.stats_reporter.add_stat("Environment/Cumulative Reward", total)
        self.stats_reporter.add_stat("Environment/Episode Length", length)

    def _append_to_update_buffer(self, agentbuffer: AgentBuffer) -> None:
        """Adds steps to the buffer during training; the last batch is completed beyond the last step."""
        if self.is_training:
            agentbuffer.resequence_and_append(self.update_buffer)

    def _clear_update_buffer(self) -> None:
        self.update_buffer.reset_agent()

    def add_policy(self, parsed_behavior_id: str, policy: Any) -> None:
        wrapped = policy if isinstance(policy, Policy) else Policy(policy, parsed_behavior_id)
        wrapped.behavior_id = parsed_behavior_id
        self.policies[parsed_behavior_id] = wrapped
        self.policy = next(iter(self.policies.values())).core
        self.algorithm = self.optimizer = self.create_optimizer()
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
    def get_step(self) -> int:
        return self.hooks.step

    @property
    def is_overdue(self) -> bool:
        """Whether so much data exceeds the budget that hooks which are not ready never will be."""
        assert self.update_buffer.max_length is not None
        return self.get_step >= self.get_max_steps + self.update_buffer.max_length

    @property
    def is_finished(self) -> bool:
        """Whether the budget is spent and the last batch learned; hooks that process no more data end it too."""
        return super().is_finished or self.is_overdue

    @property
    def buffers(self) -> Mapping[str, Stateful]:
        """The buffers of its hooks, which are part of every checkpoint."""
        return {"update_buffer": self.update_buffer}

    def advance(self) -> bool:
        """Processes queued trajectories and updates if there is enough data; returns whether it did.

        A trainer of a run advances the whole run.
        """
        if self.is_connected:
            return self.trainer.advance()
        self._drain()
        if not self._has_batch():
            return False
        self.update()
        env_steps, episodes = self.consumed
        self.progress.close_cycle(env_steps=env_steps, episodes=episodes)
        self.published()
        return True

    def _drain(self) -> None:
        """Processes all queued trajectories."""
        for queue in self.trajectory_queues:
            for _ in range(queue.qsize()):
                self._take_in(queue.get_nowait())

    def _take_in(self, trajectory: Trajectory) -> None:
        self._process_trajectory(trajectory)
        hooks = self.hooks
        if self.threaded and not hooks.is_enough:
            hooks.num_gathered += len(trajectory)
            hooks.is_enough = self._is_ready_update()

    def _has_batch(self) -> bool:
        """Whether the hooks are ready for an update, and there is new data since the last one."""
        if self.get_step == self.progress.env_steps or not self._is_ready_update():
            return False
        self._complete_batch()
        return True

    def _num_wanted(self) -> int:
        """Returns the size of a block: any trajectory in turns, and asynchronously as many steps as an update takes."""
        if not self.threaded:
            return 1
        numbers = self.trainer_settings.hyperparameters
        is_on_policy = isinstance(numbers, OnPolicyHyperparameterSettings)
        first = numbers.buffer_size if is_on_policy else numbers.batch_size
        return max(1, self._steps_per_update() or self.hooks.num_needed or first)

    # -- the core's learner ----------------------------------------------------------------------------------------

    @property
    def given_algorithm(self) -> Algorithm | None:
        return self.optimizer if isinstance(self.optimizer, Algorithm) else None

    @property
    def has_own_blocks(self) -> bool:
        return True

    def make_block(self) -> Any:
        return TrajectoryQueue(self.brain_name, self.policy.spec, self._num_wanted)

    def make_store(self, blocks: Sequence[Any]) -> RolloutStore:
        return TrajectoryQueues(*blocks)

    def connect(self, store: RolloutStore, events: EventManager, guard: UpdateGuard, accelerated: Accelerated) -> None:
        super().connect(store, events, StrictGuard(guard.settings), accelerated)

    def begin_cycle(self) -> None:
        self.store.release()
        if self.given_algorithm is not None:
            self.given_algorithm.adopt_weights()

    def take(self) -> bool:
        """Passes the trajectories of the full block through the hooks; returns False if they are not enough."""
        block: Any = self.store.take()
        while not block.empty():
            self._take_in(block.get_nowait())
        self._drain()
        # They are in the buffers of the hooks now.
        self.store.mark_consumed()
        return self._has_batch()

    def estimate(self) -> None:
        """Does nothing: `_update_policy` does it."""

    def update(self) -> Metrics:
        self.begin_update()
        self.end_update(bool(self._update_policy()))
        return {}

    def begin_update(self) -> None:
        """Marks the data of the update that begins now."""
        self.stats_reporter.add_stat("Policy/Buffer Utilization", self._utilization())
        self.hooks.begin_update()

    def end_update(self, has_updated: bool) -> None:
        """Records that an update was computed."""
        self.hooks.has_updated = has_updated
        if has_updated:
            self.cumulative_returns_since_policy_update.clear()

    def observe(self) -> None:
        """Does nothing: `_update_policy` does it."""

    def _utilization(self) -> float:
        """Returns the filled fraction of the buffer."""
        assert self.update_buffer.max_length is not None
        return self.update_buffer.num_experiences / self.update_buffer.max_length

    @property
    def consumed(self) -> tuple[int, int]:
        return self.hooks.step - self.progress.env_steps, self.hooks.episodes - self.progress.episodes

    @property
    def has_data(self) -> bool:
        return self.consumed[0] > 0

    def published(self) -> None:
        if self.hooks.has_updated:
            for queue in self.policy_queues:
                queue.put(self.get_policy(queue.behavior_id))
        told = {
            "Step": self.progress.env_steps,
            "Is Training": float(self.should_still_train),
            "Policy/Update Frequency": self.progress.updates / max(1, self.progress.env_steps),
        }
        for name, value in told.items():
            self.stats_reporter.set_stat(name, value)

    def begin_from_policy(self) -> None:
        if self.given_algorithm is not None:
            self.given_algorithm.begin_from_policy()

    def restore_batch(self) -> None:
        """Does nothing: hooks have already processed the taken data."""

    @property
    def paths(self) -> dict[str, str]:
        return {"acting": self.accelerated.paths["acting"], "learning": f"by the hooks of {type(self).__name__}"}


def _next_multiple(step: int, interval: int) -> int:
    return (step // interval + 1) * interval
