"""Names of mlagents.trainers.ppo."""

from quintain.behaviors.algorithm_trainer import PPOTrainer

__all__ = ["PPOTrainer"]
