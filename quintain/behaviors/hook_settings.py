"""Settings that record the classes of a run by hooks. Imports no torch."""

from __future__ import annotations

from pydantic import JsonValue

from quintain.settings.base import PartSettings
from quintain.trainers.settings import TrainerSettings


class HookTrainerSettings(TrainerSettings):
    """Trains a behaviour by the hooks of a class with ML-Agents' names."""

    class_name: str
    """The class as module:Name; informative only, because only a TrainerController makes it."""


class HookAlgorithmSettings(PartSettings):
    """Updates the policy by a trainer's own `_update_policy`."""

    hyperparameters: dict[str, JsonValue]
    """The hyperparameters of the trainer."""
