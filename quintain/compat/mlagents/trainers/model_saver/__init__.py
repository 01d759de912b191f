"""Names of mlagents.trainers.model_saver."""

from quintain.behaviors.savers import BaseModelSaver

__all__ = ["BaseModelSaver"]
