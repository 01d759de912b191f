"""Names of mlagents.trainers.sac.trainer."""

from quintain.behaviors.algorithm_trainer import SACTrainer

__all__ = ["SACTrainer"]
