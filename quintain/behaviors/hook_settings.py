"""Declares what the settings of a run by hooks say of the classes that trained it. Imports no torch."""

from __future__ import annotations

from pydantic import JsonValue

from quintain.settings.base import PartSettings
from quintain.trainers.settings import TrainerSettings


class HookTrainerSettings(TrainerSettings):
    """Trains a behaviour by the hooks of a class with ML-Agents' names."""

    class_name: str
    """The class as module:Name; for the reader, because only a TrainerController makes it."""


class HookAlgorithmSettings(PartSettings):
    """Changes the policy by a trainer's own `_update_policy`."""

    hyperparameters: dict[str, JsonValue]
    """The hyperparameters that the trainer was given."""
