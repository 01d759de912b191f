"""Names of mlagents.trainers.trainer.rl_trainer."""

from quintain.behaviors.trainer import RLTrainer

__all__ = ["RLTrainer"]
