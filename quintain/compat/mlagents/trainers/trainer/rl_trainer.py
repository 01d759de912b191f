"""Names of mlagents.trainers.trainer.rl_trainer."""

from quintain.behaviors.rl_trainer import RLTrainer

__all__ = ["RLTrainer"]
