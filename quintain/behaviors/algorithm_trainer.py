"""Trainers that name an algorithm of the core and hand it whole trajectories; they have no loss of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from quintain.behaviors.policy import Policy
from quintain.behaviors.rl_trainer import RLTrainer
from quintain.behaviors.trainer_settings import TrainerSettings
from quintain.behaviors.translate import behavior_settings
from quintain.core import registry
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fields import gather_fields
from quintain.data.mates import no_mates
from quintain.data.spec import leaves
from quintain.data.trajectory import GROUP_REWARD, Closed, TrajectoryBlock
from quintain.envs.agents.boundary import core_spec
from quintain.errors import SettingsError
from quintain.rollouts.agent_collector import close_block
from quintain.rollouts.store import RolloutBuffer

if TYPE_CHECKING:
    from quintain.algorithms.base import Algorithm
    from quintain.behaviors.trajectory import Trajectory


class AlgorithmTrainer(RLTrainer):
    """Trains a behaviour by an algorithm of the core, as its settings say."""

    training_parts: ClassVar[tuple[str, ...]] = (*RLTrainer.training_parts, "experience")
    reported: ClassVar[dict[str, str]] = {}
    """Statistics by ML-Agents' names, and what the algorithm calls them."""

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
        """Makes the trainer from what ML-Agents' factory gives, in its order."""
        super().__init__(behavior_name, trainer_settings, training, load, artifact_path, reward_buff_cap)
        self.seed = seed
        self.rng = Rng(max(seed, 0)).child("behaviors").child(behavior_name)
        self.blocks = behavior_settings(trainer_settings, trainer_settings.max_steps)
        self.experience: RolloutBuffer

    def create_policy(self, parsed_behavior_id: str, behavior_spec: Any) -> Policy:
        make, settings = self._part("policy", self.blocks["policy"])
        core = make(settings, core_spec(self.brain_name, behavior_spec), self.rng.child("policy"))
        return Policy(core, parsed_behavior_id, behavior_spec)

    def create_optimizer(self) -> Algorithm:
        """Makes the algorithm, which has the optimizer, and the store that trajectories wait in."""
        if self.policy.state_size:
            raise SettingsError("trajectories in queues do not say what a policy remembered; leave memory out")
        signals = {}
        for name, given in self.blocks["reward_signals"].items():
            make_signal, settings = self._part("reward_signal", {"type": name, **given})
            signals[name] = make_signal(settings)
        make, settings = self._part("algorithm", self.blocks["algorithm"])
        algorithm: Algorithm = make(settings, self.policy, signals, self.rng.child("algorithm"))
        # After the algorithm, which says what is to be kept of each step.
        make_store, rollout = self._part("rollout", self.blocks["rollout"])
        num_rows = rollout.steps_per_batch + rollout.time_horizon
        self.experience = make_store(
            TrajectoryBlock(
                self.policy.spec,
                num_rows,
                gather_fields(self.policy.spec, self.policy, algorithm, *algorithm.signals.values(), type(self)),
            ),
            settings=rollout,
        )
        return algorithm

    def _part(self, kind: str, given: dict[str, Any]) -> tuple[Any, Any]:
        registration = registry.get(kind, given["type"])
        return registration.load(), registration.settings_class.model_validate(given)

    def _process_trajectory(self, trajectory: Trajectory) -> None:
        super()._process_trajectory(trajectory)
        if not self.is_training:
            return
        if not self.experience.is_lent:
            self.experience.reserve()
        spec = self.policy.spec
        names, one = leaves(spec.obs, f.OBS), np.ones(1, np.bool_)
        # A trajectory that says nothing of mates is one of an agent that has none.
        steps = no_mates(spec, 1, len(trajectory)) if self.follows_groups else {}
        nobody = no_mates(spec, 1) if self.follows_groups else {}
        nobody = {name: rows for name, rows in nobody.items() if name not in leaves(spec.action, f.MATE_ACTION)}
        next_mates = {**nobody, **{name: rows[None] for name, rows in (trajectory.next_mates or {}).items()}}
        closed = Closed(
            slots=np.zeros(1, np.int64),
            ids=np.array([int(trajectory.agent_id)]),
            lengths=np.array([len(trajectory)]),
            terminated=one & (trajectory.done_reached and not trajectory.interrupted),
            truncated=one & trajectory.interrupted,
            begins=one & trajectory.begins_episode,
            group_id=np.array([trajectory.group_id]),
            next_obs={name: rows[None] for name, rows in zip(names, trajectory.next_obs, strict=True)},
            next_mates=next_mates or None,
        )
        steps |= {name: rows[None] for name, rows in trajectory.fields.items()}
        self.experience.trajectories.append(closed, steps)

    def _is_ready_update(self) -> bool:
        return self.experience.is_full or self.experience.has_waiting

    def _steps_per_update(self) -> int:
        return self.experience.steps_per_batch

    def _complete_batch(self) -> None:
        if self.experience.is_full:
            block = self.experience.trajectories
            close_block(block, self.published_policy)
            self.experience.commit(block)

    def _stage_collect(self) -> bool:
        # A learner of its own does so itself: agents act with a copy.
        if not self.learners_beside:
            self.optimizer.adopt_weights()
        return super()._stage_collect()

    def _utilization(self) -> float:
        return self.experience.utilisation

    def _update_policy(self) -> bool:
        # For whoever calls hooks by hand; the loop has done it.
        self._complete_batch()
        experience, algorithm = self.experience, self.optimizer
        batch = experience.take()
        algorithm.adopt_weights()
        algorithm.estimate(batch)
        losses = algorithm.update(batch, self.progress)
        algorithm.observe(batch.valid_obs())
        self._log_train(losses)
        for stat, name in self.reported.items():
            if name in losses:
                self.stats_reporter.add_stat(stat, losses[name])
        for name in algorithm.signals:
            if f"value/{name}" in losses:
                self.stats_reporter.add_stat(f"Policy/{name.capitalize()} Value Estimate", losses[f"value/{name}"])
        experience.spend()
        experience.release()
        return True


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
    """Trains a behaviour whose agents are in groups by POCA."""

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
