"""Declares the settings of the trainers and events that ship. Imports no torch."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from quintain.registry import Registration
from quintain.settings.base import Count, PartSettings


class TrainerSettings(PartSettings):
    """Configures a trainer of your own that needs no settings."""


class RolloutTrainerSettings(TrainerSettings):
    """Repeats collect, estimate, update and publish until the budget is spent."""


class EventSettings(PartSettings):
    """Configures what happens between the stages of a trainer."""

    observes_only: ClassVar[bool] = False
    """Whether the event cannot change any number of the training; it is then left out of the fingerprint."""


class ScheduledEventSettings(EventSettings):
    """Calls an event at a fixed interval."""

    every_env_steps: Count | None = None
    """Environment steps between two calls."""

    every_updates: Count | None = None
    """Updates between two calls."""

    @model_validator(mode="after")
    def _has_one_interval(self) -> ScheduledEventSettings:
        if (self.every_env_steps is None) == (self.every_updates is None):
            raise PydanticCustomError("interval", "set either every_env_steps or every_updates")
        return self

    def parameters(self) -> dict[str, Any]:
        """Returns the keyword arguments of an event function: every field of its own."""
        own = type(self).model_fields.keys() - ScheduledEventSettings.model_fields.keys()
        return {name: getattr(self, name) for name in type(self).model_fields if name in own}


class EvaluateSettings(EventSettings):
    """Plays whole episodes in environments of its own and reports their returns."""

    observes_only: ClassVar[bool] = True

    every_env_steps: Count | None = None
    """Environment steps between two evaluations; none means a tenth of the budget."""

    num_episodes: Count = 10
    """Episodes in one evaluation."""

    deterministic: bool = True
    """Take the most likely action instead of a sampled one."""


class StopAtReturnSettings(EventSettings):
    """Ends the run once the mean return of an evaluation is high enough."""

    mean_return: float
    """Mean return over the episodes of one evaluation that ends the run."""


REGISTERED = (
    Registration("trainer", "rollout", RolloutTrainerSettings, "quintain.trainers.base:Trainer"),
    Registration("event", "evaluate", EvaluateSettings, "quintain.trainers.events:Evaluate"),
    Registration("event", "stop_at_return", StopAtReturnSettings, "quintain.trainers.events:StopAtReturn"),
)
