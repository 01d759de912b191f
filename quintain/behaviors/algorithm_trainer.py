"""PPO, POCA and SAC with ML-Agents' names: trainers that delegate to an algorithm of the core.

A run trains them like any behaviour: by the core's blocks, store and stages. Only a subclass with its own hooks gets
`Trajectory` objects, which the hooks convert to the algorithm's batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from quintain.behaviors.policy import Policy
from quintain.behaviors.queues import TrajectoryQueues
from quintain.behaviors.rl_trainer import RLTrainer
from quintain.behaviors.trainer_settings import TrainerSettings
from quintain.behaviors.translate import behavior_settings
from quintain.core import registry
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fields import ALL_ENDS, gather_fields
from quintain.data.spec import leaves
from quintain.data.teammates import no_teammates
from quintain.data.trajectory import GROUP_REWARD, Closed, TrajectoryBlock
from quintain.envs.agents.boundary import core_spec
from quintain.errors import SettingsError
from quintain.rollouts.agent_collector import close_block
from quintain.rollouts.store import RolloutBuffer
from quintain.trainers.learner import Learner, train_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quintain.algorithms.base import Algorithm
    from quintain.behaviors.queues import AgentManagerQueue
    from quintain.behaviors.trajectory import Trajectory
    from quintain.compiled.plug import Accelerated
    from quintain.rollouts.store import RolloutStore
    from quintain.services.events import EventManager
    from quintain.trainers.guard import UpdateGuard
    from quintain.typing import Array, Metrics, Stateful


class AlgorithmTrainer(RLTrainer):
    """Trains a behaviour with an algorithm of the core, according to its settings."""

    reported: ClassVar[dict[str, str]] = {}
    """Statistics by ML-Agents' names, and the algorithm's names of them."""

    def __init__(
        self,
        behavior_name: str,
        reward_buff_cap: int,
        trainer_settings: TrainerSettings,
        training: bool,
        load: bool,
        seed: int,
        artifact_path: str,
    ) -> None:
        """Takes the arguments of ML-Agents' factory, in its order."""
        super().__init__(behavior_name, trainer_settings, training, load, artifact_path, reward_buff_cap)
        self.seed = seed
        self.rng = Rng(max(seed, 0)).child("behaviors").child(behavior_name)
        self.blocks = behavior_settings(trainer_settings, trainer_settings.max_steps)
        self.experience: RolloutBuffer | None = None
        """Trajectories that went through the hooks; none where the algorithm learns from the run's own blocks."""

    def create_policy(self, parsed_behavior_id: str, behavior_spec: Any) -> Policy:
        make, settings = self._part("policy", self.blocks["policy"])
        core = make(settings, core_spec(self.brain_name, behavior_spec), self.rng.child("policy"))
        return Policy(core, parsed_behavior_id, behavior_spec)

    def create_optimizer(self) -> Algorithm:
        """Makes the algorithm, which has the optimizer."""
        if self.policy.state_size and self._has_own_hooks():
            raise SettingsError("trajectories in queues do not carry the hidden state; leave memory out")
        signals = {}
        for name, given in self.blocks["reward_signals"].items():
            make_signal, settings = self._part("reward_signal", {"type": name, **given})
            signals[name] = make_signal(settings)
        make, settings = self._part("algorithm", self.blocks["algorithm"])
        algorithm: Algorithm = make(settings, self.policy, signals, self.rng.child("algorithm"))
        return algorithm

    def _part(self, kind: str, given: dict[str, Any]) -> tuple[Any, Any]:
        registration = registry.get(kind, given["type"])
        return registration.load(), registration.settings_class.model_validate(given)

    # -- by the core's blocks ---------------------------------------------------------------------------------------

    def _has_own_hooks(self) -> bool:
        """Whether a subclass overrides a hook that sees trajectories, or decides when and how to learn from them."""
        return any(
            getattr(getattr(self, hook), "__func__", None) is not getattr(AlgorithmTrainer, hook) for hook in HOOKS
        )

    @property
    def has_own_blocks(self) -> bool:
        return self._has_own_hooks() or bool(self.trajectory_queues) or self.given_algorithm is None

    @property
    def is_direct(self) -> bool:
        """Whether the algorithm learns from the run's own blocks."""
        return self.is_connected and not isinstance(self.store, TrajectoryQueues)

    def subscribe_trajectory_queue(self, trajectory_queue: AgentManagerQueue[Trajectory]) -> None:
        if self.is_direct:
            raise RuntimeError("a trainer that trains already takes no further queues; subscribe before it is prepared")
        super().subscribe_trajectory_queue(trajectory_queue)

    def connect(self, store: RolloutStore, events: EventManager, guard: UpdateGuard, accelerated: Accelerated) -> None:
        super().connect(store, events, guard, accelerated)
        if not isinstance(store, TrajectoryQueues):
            self.guard = guard

    def take(self) -> bool:
        if not self.is_direct:
            return super().take()
        Learner.take(self)
        self._count(self.taken.num_valid, self.taken.num_episodes)
        return True

    def estimate(self) -> None:
        if self.is_direct:
            Learner.estimate(self)

    def update(self) -> Metrics:
        if not self.is_direct:
            return super().update()
        self.begin_update()
        losses = Learner.update(self)
        self._report_losses(losses)
        self.end_update(has_updated=True)
        return losses

    def observe(self) -> None:
        if self.is_direct:
            Learner.observe(self)

    def restore_batch(self) -> None:
        if self.is_direct:
            Learner.restore_batch(self)

    def hear_episodes(self, returns: Array, lengths: Array) -> None:
        super().hear_episodes(returns, lengths)
        if self.is_direct:
            for total, length in zip(returns.tolist(), lengths.tolist(), strict=True):
                self._report_episode(total, length)

    @property
    def paths(self) -> dict[str, str]:
        return self.accelerated.paths if self.is_direct else super().paths

    def _report_losses(self, losses: Metrics) -> None:
        """Reports the metrics of an update by ML-Agents' names."""
        for stat, name in self.reported.items():
            if name in losses:
                self.stats_reporter.add_stat(stat, losses[name])
        for name in self.optimizer.signals:
            if f"value/{name}" in losses:
                self.stats_reporter.add_stat(f"Policy/{name.capitalize()} Value Estimate", losses[f"value/{name}"])

    # -- by hooks ---------------------------------------------------------------------------------------------------

    def _waiting(self) -> RolloutBuffer:
        """Returns the store of trajectories that went through the hooks; made on first use."""
        if self.experience is None:
            make_store, rollout = self._part("rollout", self.blocks["rollout"])
            algorithm = self.optimizer
            fields = gather_fields(self.policy.spec, self.policy, algorithm, *algorithm.signals.values(), self)
            fields |= ALL_ENDS if algorithm.sees_next_obs else {}
            block = TrajectoryBlock(self.policy.spec, rollout.steps_per_batch + rollout.time_horizon, fields)
            block.num_wanted = rollout.steps_per_batch
            self.experience = make_store(block, settings=rollout)
        return self.experience

    @property
    def buffers(self) -> Mapping[str, Stateful]:
        return super().buffers if self.is_direct else {**super().buffers, "experience": self._waiting()}

    def _process_trajectory(self, trajectory: Trajectory) -> None:
        super()._process_trajectory(trajectory)
        if not self.is_training:
            return
        experience = self._waiting()
        if not experience.is_lent:
            experience.reserve()
        spec = self.policy.spec
        names, one = leaves(spec.obs, f.OBS), np.ones(1, np.bool_)
        # A trajectory that says nothing of teammates is one of an agent that has none.
        steps = no_teammates(spec, 1, len(trajectory)) if self.follows_groups else {}
        nobody = no_teammates(spec, 1) if self.follows_groups else {}
        nobody = {name: rows for name, rows in nobody.items() if name not in leaves(spec.action, f.TEAMMATE_ACTION)}
        next_teammates = {**nobody, **{name: rows[None] for name, rows in (trajectory.next_teammates or {}).items()}}
        closed = Closed(
            slots=np.zeros(1, np.int64),
            ids=np.array([int(trajectory.agent_id)]),
            lengths=np.array([len(trajectory)]),
            terminated=one & (trajectory.done_reached and not trajectory.interrupted),
            truncated=one & trajectory.interrupted,
            begins=one & trajectory.begins_episode,
            group_id=np.array([trajectory.group_id]),
            next_obs={name: rows[None] for name, rows in zip(names, trajectory.next_obs, strict=True)},
            next_teammates=next_teammates or None,
        )
        steps |= {name: rows[None] for name, rows in trajectory.fields.items()}
        experience.trajectories.append(closed, steps)

    def _is_ready_update(self) -> bool:
        experience = self._waiting()
        return experience.is_full or experience.has_waiting

    def _steps_per_update(self) -> int:
        return self._waiting().steps_per_batch

    def _complete_batch(self) -> None:
        experience = self._waiting()
        if experience.is_full:
            block = experience.trajectories
            close_block(block, self.policy)
            experience.commit(block)

    def _utilization(self) -> float:
        return 1.0 if self.is_direct else self._waiting().utilisation

    def _update_policy(self) -> bool:
        # For hooks that are called by hand; a run has done it.
        self._complete_batch()
        experience, algorithm = self._waiting(), self.optimizer
        batch = experience.take()
        algorithm.adopt_weights()
        algorithm.estimate(batch)
        losses = algorithm.learn(batch, self.progress)
        algorithm.observe(batch.valid_obs())
        self.stats.add_all(train_metrics(losses))
        self._report_losses(losses)
        experience.mark_consumed()
        experience.release()
        return True


HOOKS = (
    "_process_trajectory",
    "_is_ready_update",
    "_steps_per_update",
    "_complete_batch",
    "_update_policy",
    "_update_end_episode_stats",
)
"""Hooks that see single trajectories, or decide when and how to learn from them."""


class PPOTrainer(AlgorithmTrainer):
    """Trains a behaviour by PPO."""

    reported: ClassVar[dict[str, str]] = {
        "Losses/Policy Loss": "train/policy_loss",
        "Losses/Value Loss": "train/value_loss",
        "Policy/Entropy": "train/entropy",
        "Policy/Learning Rate": "train/learning_rate",
    }

    @staticmethod
    def get_trainer_name() -> str:
        return "ppo"


class POCATrainer(PPOTrainer):
    """Trains a behaviour of agents in groups by POCA."""

    follows_groups: ClassVar[bool] = True
    reported: ClassVar[dict[str, str]] = {**PPOTrainer.reported, "Losses/Baseline Loss": "train/baseline_loss"}

    def _process_trajectory(self, trajectory: Trajectory) -> None:
        super()._process_trajectory(trajectory)
        totals, agent = self.collected_rewards.setdefault("group", {}), trajectory.agent_id
        totals[agent] = totals.get(agent, 0.0) + float(trajectory.fields[GROUP_REWARD].sum())
        if trajectory.done_reached:
            total = totals.pop(agent)
            # Who left early did not hear of what its group got later.
            if trajectory.all_group_dones_reached:
                self.stats_reporter.add_stat("Environment/Group Cumulative Reward", total)

    @staticmethod
    def get_trainer_name() -> str:
        return "poca"


class SACTrainer(AlgorithmTrainer):
    """Trains a behaviour by SAC."""

    reported: ClassVar[dict[str, str]] = {
        "Losses/Policy Loss": "train/policy_loss",
        "Policy/Learning Rate": "train/learning_rate",
    }

    @staticmethod
    def get_trainer_name() -> str:
        return "sac"
