"""Names of mlagents.trainers.ppo."""

from quintain.behaviors.ppo import PPOTrainer

__all__ = ["PPOTrainer"]
