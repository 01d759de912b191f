"""Names of mlagents.trainers.poca.trainer."""

from quintain.behaviors.algorithm_trainer import POCATrainer

__all__ = ["POCATrainer"]
