"""Names of mlagents.trainers.trainer."""

from quintain.behaviors.trainer import Trainer

__all__ = ["Trainer"]
