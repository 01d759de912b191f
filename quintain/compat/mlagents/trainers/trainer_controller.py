"""Names of mlagents.trainers.trainer_controller."""

from quintain.behaviors.controller import TrainerController

__all__ = ["TrainerController"]
