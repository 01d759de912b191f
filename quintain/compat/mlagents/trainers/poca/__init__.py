"""Names of mlagents.trainers.poca."""

from quintain.behaviors.algorithm_trainer import POCATrainer

__all__ = ["POCATrainer"]
