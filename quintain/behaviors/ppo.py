"""ML-Agents' PPO trainer: it names an algorithm of the core, and hands it whole trajectories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import PPOSettings
from quintain.behaviors.policy import Policy
from quintain.behaviors.trainer import RLTrainer
from quintain.behaviors.trainer_settings import TrainerSettings
from quintain.behaviors.translate import behavior_settings
from quintain.data import fields as f
from quintain.data.spec import leaves
from quintain.data.trajectory import Closed, TrajectoryBatch, TrajectoryBlock
from quintain.envs.agents.boundary import core_spec
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings
from quintain.rng import Rng
from quintain.rollouts.agent_collector import close_block

if TYPE_CHECKING:
    from quintain.behaviors.trajectory import Trajectory


class PPOTrainer(RLTrainer):
    """Trains a behaviour by PPO."""

    training_parts: ClassVar[tuple[str, ...]] = (*RLTrainer.training_parts, "block")

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
        super().__init__(behavior_name, trainer_settings, training, load, artifact_path, reward_buff_cap)
        self.seed = seed
        self.rng = Rng(max(seed, 0)).child("behaviors").child(behavior_name)
        self.blocks = behavior_settings(trainer_settings, trainer_settings.max_steps)

    @staticmethod
    def get_trainer_name() -> str:
        return "ppo"

    def create_policy(self, parsed_behavior_id: str, behavior_spec: Any) -> Policy:
        settings = ActorCriticSettings.model_validate(self.blocks["policy"])
        core = ActorCritic(settings, core_spec(self.brain_name, behavior_spec), self.rng.child("policy"))
        return Policy(core, parsed_behavior_id, behavior_spec)

    def create_optimizer(self) -> PPO:
        """Makes the algorithm, which has the optimizer, and the block that trajectories wait in."""
        signals = {name: Extrinsic(ExtrinsicSettings(**each)) for name, each in self.blocks["reward_signals"].items()}
        self.block = TrajectoryBlock(self.policy.spec, self.trainer_settings.hyperparameters.buffer_size)
        settings = PPOSettings.model_validate(self.blocks["algorithm"])
        return PPO(settings, self.policy, signals, self.rng.child("algorithm"))

    def _process_trajectory(self, trajectory: Trajectory) -> None:
        super()._process_trajectory(trajectory)
        if not self.is_training:
            return
        names = leaves(self.policy.spec.obs, f.OBS)
        one = np.ones(1, np.bool_)
        closed = Closed(
            slots=np.zeros(1, np.int64),
            ids=np.array([int(trajectory.agent_id)]),
            lengths=np.array([len(trajectory)]),
            terminated=one & (trajectory.done_reached and not trajectory.interrupted),
            truncated=one & trajectory.interrupted,
            begins=one & trajectory.begins_episode,
            group_id=np.array([trajectory.group_id]),
            next_obs={name: rows[None] for name, rows in zip(names, trajectory.next_obs, strict=True)},
        )
        self.block.append(closed, {name: rows[None] for name, rows in trajectory.fields.items()})

    def _is_ready_update(self) -> bool:
        return self.block.num_steps >= self.trainer_settings.hyperparameters.buffer_size

    def _update_policy(self) -> bool:
        block, algorithm = self.block, self.optimizer
        close_block(block, self.policy)
        batch = TrajectoryBatch(block)
        algorithm.estimate(batch)
        losses = algorithm.update(batch, self.progress)
        algorithm.observe(batch.valid_obs())
        self._log_train(losses)
        for stat, name in (("Losses/Policy Loss", "policy_loss"), ("Losses/Value Loss", "value_loss"),
                           ("Policy/Entropy", "entropy"), ("Policy/Learning Rate", "learning_rate")):  # fmt: skip
            self.stats_reporter.add_stat(stat, losses[f"train/{name}"])
        block.begin(block.sequence + 1, 0)
        return True
