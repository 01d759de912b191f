"""Names of mlagents.trainers.ppo.trainer."""

from quintain.behaviors.algorithm_trainer import PPOTrainer

__all__ = ["PPOTrainer"]
