"""ML-Agents' trainer by hooks: the core's stages call them, so that there is one loop.

collect    trajectories are taken from the queues and go through `_process_trajectory` until `_is_ready_update`
update     `_update_policy`
publish    the policy goes into every policy queue

Where `threaded` is set, `_update_policy` runs in a thread of its own while agents act on; all other hooks run between
updates, in the thread that steps the environment. See `updating`.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from quintain.behaviors.buffer import AgentBuffer
from quintain.behaviors.policy import Policy
from quintain.behaviors.queues import AgentManagerQueue
from quintain.behaviors.savers import BaseModelSaver, RunModelSaver
from quintain.behaviors.trainer import Trainer
from quintain.behaviors.trainer_settings import TrainerSettings
from quintain.behaviors.trajectory import Trajectory
from quintain.behaviors.updating import Updating, UpdatingBeside, UpdatingInTurns
from quintain.data import fields as f
from quintain.data.trajectory import GROUP_REWARD

if TYPE_CHECKING:
    from quintain.policies.base import Policy as CorePolicy
    from quintain.typing import State


class RLTrainer(Trainer):
    """Trains by four hooks: what to make of a trajectory, when to learn, how to learn, and with which optimizer."""

    stages: ClassVar[tuple[str, ...]] = ("collect", "update", "publish")
    follows_groups: ClassVar[bool] = False
    """Whether its trajectories have what the other members of an agent's group saw, did and got."""

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
        self.updating: Updating = UpdatingInTurns(self)

    @staticmethod
    def create_model_saver(trainer: Trainer) -> BaseModelSaver:
        """Makes what keeps the models; override it to plug in another."""
        return RunModelSaver(trainer)

    @abstractmethod
    def create_optimizer(self) -> Any:
        """Makes what changes the policy; an object with `state_dict` is part of every checkpoint."""

    @abstractmethod
    def _update_policy(self) -> bool:
        """Changes the policy by what is in the buffer; says whether it did.

        Where `threaded` is set this runs in a thread of its own: it may use all that the trainer holds, and must leave
        alone the environment, the queues and Python's, numpy's and torch's global random numbers.
        """

    @abstractmethod
    def _is_ready_update(self) -> bool:
        """Says whether there is enough to learn from."""

    def _steps_per_update(self) -> int | None:
        """Returns how many new steps an update takes where that is known; None: as many as the one before it needed.

        So many steps agents take while an update goes on, before it is waited for.
        """
        return None

    def _complete_batch(self) -> None:
        """Finishes what is to be learned from while `published_policy` is the one that acted; nothing by default."""

    @abstractmethod
    def _process_trajectory(self, trajectory: Trajectory) -> None:
        """Takes in one trajectory: this counts it and must be called first; add what is to be learned from."""
        self._maybe_write_summary(self.get_step + len(trajectory))
        self._maybe_save_model(self.get_step + len(trajectory))
        self.hooks.count(trajectory)
        rewards = self.collected_rewards["environment"]
        agent = trajectory.agent_id
        total = float(trajectory.fields[f.REWARD].sum() + trajectory.fields[GROUP_REWARD].sum())
        rewards[agent] = rewards.get(agent, 0.0) + total
        self.collected_lengths[agent] = self.collected_lengths.get(agent, 0) + len(trajectory)
        if trajectory.done_reached:
            self._update_end_episode_stats(agent)

    def _maybe_write_summary(self, step_after_process: int) -> None:
        """Writes a summary before the trajectory that reaches the next multiple of `summary_freq`, never at first."""
        boundary = _next_multiple(self.get_step, self.summary_freq)
        if self.get_step and step_after_process >= boundary:
            self.stats_reporter.write_stats(boundary)

    def _maybe_save_model(self, step_after_process: int) -> None:
        """Lets a saver of the user's own save at intervals; the run commits its checkpoints itself, between stages."""
        interval = self.trainer_settings.checkpoint_interval
        if self.get_step and step_after_process >= _next_multiple(self.get_step, interval):
            self._checkpoint()

    def _checkpoint(self) -> None:
        if not isinstance(self.model_saver, RunModelSaver):
            self.model_saver.save_checkpoint(self.brain_name, self.get_step)

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

    def learn_beside(self, updating: UpdatingBeside) -> None:
        """Lets somebody else compute the updates from now on, while agents act."""
        self.updating = updating
        self.learners_beside = (updating.learner,)

    @property
    def published_policy(self) -> CorePolicy:
        return self.updating.acting

    @property
    def has_failed(self) -> bool:
        return self.updating.has_failed

    def settle(self) -> None:
        self.updating.settle()

    def save_checkpoint(self) -> Path:
        self.updating.refuse_inside()
        return super().save_checkpoint()

    def begin_from_policy(self) -> None:
        self.source.publish(self.progress.version, self.policy)

    def load_state_dict(self, state: State) -> None:
        self.updating.drop()
        for kind in ("records", "training"):
            for name, saved in state[kind].items():
                self.load_part(name, saved)

    @property
    def is_overdue(self) -> bool:
        """Whether so much was taken in beyond the budget that hooks which are not ready never will be."""
        assert self.update_buffer.max_length is not None
        return self.get_step >= self.get_max_steps + self.update_buffer.max_length

    @property
    def is_finished(self) -> bool:
        """Whether the budget is spent and the last batch learned; hooks that take nothing in any more end it too."""
        return super().is_finished or (self.is_overdue and self.progress.is_between_cycles)

    def has_batch(self, since: int) -> bool:
        """Says whether hooks are ready to learn, and something is new since this step."""
        return self.get_step > since and self._is_ready_update()

    def _stage_collect(self) -> bool:
        while not self.has_batch(since=self.progress.env_steps):
            if self.is_finished:
                return False
            if not self._drain() and not self.source.fill(self.store, self.should_stop):
                return False
        self._complete_batch()
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
                self.updating.took_in(trajectory)
                is_any = True
        return is_any

    def _stage_update(self) -> bool:
        return self.updating.advance()

    def begin_update(self) -> None:
        """Takes note of what the update that begins now learns from."""
        self.stats_reporter.add_stat("Policy/Buffer Utilization", self._utilization())
        self.hooks.begin_update()

    def end_update(self, has_updated: bool) -> None:
        """Takes note that an update was computed."""
        self.hooks.has_updated = has_updated
        if has_updated:
            self.cumulative_returns_since_policy_update.clear()

    def _utilization(self) -> float:
        """Returns which part of the buffer is in use."""
        assert self.update_buffer.max_length is not None
        return self.update_buffer.num_experiences / self.update_buffer.max_length

    def _stage_publish(self) -> bool:
        self.progress.close_cycle(
            env_steps=self.hooks.learned_step - self.progress.env_steps,
            episodes=self.hooks.learned_episodes - self.progress.episodes,
        )
        self.source.publish(self.progress.version, self.policy)
        if self.hooks.has_updated:
            for queue in self.policy_queues:
                queue.put(self.updating.published(queue.behavior_id))
        told = {
            "Step": self.progress.env_steps,
            "Is Training": float(self.should_still_train),
            "Policy/Update Frequency": self.progress.updates / max(1, self.progress.env_steps),
        }
        for name, value in told.items():
            self.stats_reporter.set_stat(name, value)
        return True


def _next_multiple(step: int, interval: int) -> int:
    return (step // interval + 1) * interval
