"""Names of mlagents.trainers.trainer.trainer."""

from quintain.behaviors.trainer import Trainer

__all__ = ["Trainer"]
