"""Names of mlagents.trainers.trainer.trainer_factory."""

from quintain.behaviors.controller import TrainerFactory

__all__ = ["TrainerFactory"]
