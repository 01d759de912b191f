"""Declares the settings of the trainers and events that ship. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings, Range
from quintain.settings.choice import Choice

if TYPE_CHECKING:
    from quintain.services.events import When


class TrainerSettings(PartSettings):
    """Configures a trainer of your own that needs no settings."""


class LoopSettings(PartSettings):
    """Configures a loop of your own that needs no settings."""


class RolloutTrainerSettings(TrainerSettings):
    """Repeats collect, estimate, update and publish until the budget is spent."""


class EventSettings(PartSettings):
    """Configures what happens between the stages of a trainer."""

    observes_only: ClassVar[bool] = False
    """Whether the event cannot change any number of the training; it is then left out of the fingerprint."""


class ScheduledEventSettings(EventSettings):
    """Calls an event at an interval, after a stage, or when it is triggered."""

    every_env_steps: Count | None = None
    """Environment steps between two calls."""

    every_updates: Count | None = None
    """Updates between two calls; 1 is every cycle."""

    after: str | None = None
    """Stage after each run of which it is called."""

    on: str | None = None
    """Point at which it is called: startup, or a name that `trainer.trigger` fires."""

    @model_validator(mode="after")
    def _has_one_time(self) -> ScheduledEventSettings:
        given = [getattr(self, name) for name in ("every_env_steps", "every_updates", "after", "on")]
        if sum(value is not None for value in given) != 1:
            raise PydanticCustomError("interval", "set one of every_env_steps, every_updates, after and on")
        return self

    def when(self) -> When:
        """Returns when the event is due."""
        from quintain.services.events import After, Every, On

        if self.after is not None:
            return After(self.after)
        if self.on is not None:
            return On(self.on)
        return Every(env_steps=self.every_env_steps, updates=self.every_updates)

    def parameters(self) -> dict[str, Any]:
        """Returns the keyword arguments of an event function: every field of its own."""
        own = type(self).model_fields.keys() - ScheduledEventSettings.model_fields.keys()
        return {name: getattr(self, name) for name in type(self).model_fields if name in own}


class EvaluateSettings(EventSettings):
    """Plays whole episodes in environments of its own and reports their returns."""

    observes_only: ClassVar[bool] = True

    every_env_steps: Count | None = None
    """Environment steps between two evaluations; null means a tenth of the budget."""

    every_updates: Count | None = None
    """Updates between two evaluations, instead of environment steps."""

    num_episodes: Count = 10
    """Episodes in one evaluation."""

    max_episode_steps: Count | None = 27_000
    """Steps after which an evaluation cuts an episode that does not end; null never cuts one."""

    deterministic: bool = True
    """Take the most likely action instead of a sampled one."""

    seed: Annotated[int, Field(ge=0)] | None = None
    """Start of the evaluation's random streams; null takes the run's."""

    best_metric: str = "eval/mean_reward"
    """What the best checkpoint is chosen by."""

    best_mode: Literal["max", "min"] = "max"
    """Whether more or less of it is better."""

    env_events: tuple[Annotated[PartSettings, Choice("env_event")], ...] = ()
    """What happens inside the evaluation's environments; those of the training are not in force there."""

    @model_validator(mode="after")
    def _has_one_interval(self) -> EvaluateSettings:
        if self.every_env_steps is not None and self.every_updates is not None:
            raise PydanticCustomError("interval", "set one of every_env_steps and every_updates")
        return self


class CollectDataSettings(ScheduledEventSettings):
    """Writes the batch that was just learned from to a file of its own in the run directory."""

    observes_only: ClassVar[bool] = True

    fields: tuple[str, ...] | None = None
    """Fields of the rollout to write; null writes all."""

    keep: Count = 10
    """Newest files that are kept."""


class LogDataSettings(ScheduledEventSettings):
    """Reports mean, deviation, least and largest number of fields of the batch."""

    observes_only: ClassVar[bool] = True

    fields: tuple[str, ...] = ("reward", "value")
    """Fields of the rollout to report."""


class RandomizeEnvSettings(ScheduledEventSettings):
    """Draws parameters of the training environments anew between a low and a high, one number for all lanes."""

    ranges: dict[str, Range]
    """Low and high by the parameter's name."""


class ResetEnvSettings(ScheduledEventSettings):
    """Cuts the episodes that are going on and begins new ones in all training lanes."""


class StopAtReturnSettings(EventSettings):
    """Ends the run once the mean return of an evaluation is high enough."""

    mean_return: float
    """Mean return over the episodes of one evaluation that ends the run."""


REGISTERED = (
    Registration("trainer", "rollout", RolloutTrainerSettings, "quintain.runs.slots:Trainer"),
    Registration("event", "evaluate", EvaluateSettings, "quintain.trainers.events:Evaluate"),
    Registration("event", "stop_at_return", StopAtReturnSettings, "quintain.trainers.events:StopAtReturn"),
    Registration("event", "collect_data", CollectDataSettings, "quintain.trainers.data_events:CollectData"),
    Registration("event", "log_data", LogDataSettings, "quintain.trainers.data_events:LogData"),
    Registration("event", "randomize_env", RandomizeEnvSettings, "quintain.trainers.events:RandomizeEnv"),
    Registration("event", "reset_env", ResetEnvSettings, "quintain.trainers.events:ResetEnv"),
)
