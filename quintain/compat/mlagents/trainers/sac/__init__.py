"""Names of mlagents.trainers.sac."""

from quintain.behaviors.algorithm_trainer import SACTrainer

__all__ = ["SACTrainer"]
