"""Names of mlagents.trainers.ppo.trainer."""

from quintain.behaviors.ppo import PPOTrainer

__all__ = ["PPOTrainer"]
