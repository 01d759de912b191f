"""Settings of the built-in trainers and events. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings, Range
from quintain.settings.choice import Choice
from quintain.typing import Keywords

if TYPE_CHECKING:
    from quintain.services.events import When


class TrainerSettings(PartSettings):
    """Settings of a custom trainer that needs none of its own."""


class LoopSettings(PartSettings):
    """Settings of a custom loop that needs none of its own."""


class HostedSettings(LoopSettings):
    """Runs a training function of your own, which calls `tick` at the end of each of its iterations."""

    function: str = Field(min_length=1)
    """The function as module:name; it is called with its host."""

    kwargs: Keywords = Field(default_factory=dict)
    """Keyword arguments of the function."""

    until_returns: bool = False
    """Train until the function returns; the budget is then the number of iterations that is expected."""


class RolloutTrainerSettings(TrainerSettings):
    """Repeats collect, estimate, update and publish until the budget is spent."""


class HostedTrainerSettings(TrainerSettings):
    """Runs a training function of your own, which asks for fragments and publishes weights."""

    function: str = Field(min_length=1)
    """The function as module:name; it is called with its host."""

    kwargs: Keywords = Field(default_factory=dict)
    """Keyword arguments of the function."""


class EventSettings(PartSettings):
    """Settings of a callback between the stages of a trainer."""

    observes_only: ClassVar[bool] = False
    """Whether the event cannot change training results; it is then left out of the fingerprint."""


class ScheduledEventSettings(EventSettings):
    """Calls an event at an interval, after a stage, or by a trigger."""

    every_env_steps: Count | None = None
    """Environment steps between two calls."""

    every_updates: Count | None = None
    """Updates between two calls; 1 is every cycle."""

    after: str | None = None
    """Stage after which it is called."""

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
        """Returns the keyword arguments of an event function: all fields of the subclass."""
        own = type(self).model_fields.keys() - ScheduledEventSettings.model_fields.keys()
        return {name: getattr(self, name) for name in type(self).model_fields if name in own}


class NoEventSettings(EventSettings):
    """Leaves out the default events: only those that are named beside it happen."""

    observes_only: ClassVar[bool] = True


class EvaluateSettings(EventSettings):
    """Evaluates the policy over whole episodes, in separate environments, and reports their returns."""

    observes_only: ClassVar[bool] = True

    every_env_steps: Count | None = None
    """Environment steps between two evaluations; null means a tenth of the budget."""

    every_updates: Count | None = None
    """Updates between two evaluations, instead of environment steps."""

    num_episodes: Count = 10
    """Number of episodes per evaluation."""

    max_episode_steps: Count | None = 27_000
    """Time limit of episodes in evaluations; null sets no limit."""

    deterministic: bool = True
    """Take the most likely action instead of sampling."""

    seed: Annotated[int, Field(ge=0)] | None = None
    """Seed of the evaluation's random streams; null uses the run's."""

    best_metric: str = "eval/mean_reward"
    """Metric by which the best checkpoint is chosen."""

    best_mode: Literal["max", "min"] = "max"
    """Whether a larger or a smaller value is better."""

    env_events: tuple[Annotated[PartSettings, Choice("env_event")], ...] = ()
    """Events of the evaluation's environments; those of the training do not apply there."""

    @model_validator(mode="after")
    def _has_one_interval(self) -> EvaluateSettings:
        if self.every_env_steps is not None and self.every_updates is not None:
            raise PydanticCustomError("interval", "set one of every_env_steps and every_updates")
        return self


class CollectDataSettings(ScheduledEventSettings):
    """Writes the batch of the last update to a file in the run directory."""

    observes_only: ClassVar[bool] = True

    fields: tuple[str, ...] | None = None
    """Fields of the rollout to write; null writes all."""

    keep: Count = 10
    """Number of newest files to keep."""


class RecordVideoSettings(ScheduledEventSettings):
    """Records an episode of the current policy as a video, beside training, in an environment of its own."""

    observes_only: ClassVar[bool] = True

    frames_per_second: Annotated[float, Field(gt=0)] | None = None
    """Frames per second of the video; null takes those of the environment."""

    deterministic: bool = False
    """Take the most likely action instead of sampling."""

    max_episode_steps: Count = 1000
    """Steps after which an episode is left."""

    keep: Count = 100
    """Number of newest videos to keep."""


class LogDataSettings(ScheduledEventSettings):
    """Reports mean, deviation, minimum and maximum of fields of the batch."""

    observes_only: ClassVar[bool] = True

    fields: tuple[str, ...] = ("reward", "value")
    """Fields of the rollout to report."""


class RandomizeEnvSettings(ScheduledEventSettings):
    """Domain randomization: draws environment parameters uniformly between low and high, one value for all lanes."""

    ranges: dict[str, Range]
    """Low and high by the parameter's name."""


class ResetEnvSettings(ScheduledEventSettings):
    """Truncates the running episodes and starts new ones in all training lanes."""


class StopAtReturnSettings(EventSettings):
    """Ends the run once the mean return of an evaluation is high enough."""

    mean_return: float
    """Mean return over the episodes of one evaluation that ends the run."""


class SampleConversationsSettings(ScheduledEventSettings):
    """Plays conversations of an experiment's agents in a separate environment and writes their transcripts."""

    observes_only: ClassVar[bool] = True

    num_conversations: Count = 10
    """Number of conversations per sample."""


class PretrainBodiesSettings(ScheduledEventSettings):
    """Fits the bodies of a team's agents to the labels of their data; `on: startup` is before the first rollout."""


REGISTERED = (
    Registration("loop", "hosted", HostedSettings, "quintain.trainers.hosted:HostedLoop"),
    Registration("trainer", "rollout", RolloutTrainerSettings, "quintain.runs.slots:Trainer"),
    Registration("trainer", "hosted", HostedTrainerSettings, "quintain.trainers.hosted_trainer:HostedTrainer"),
    Registration("event", "none", NoEventSettings, "quintain.trainers.events:NoEvent"),
    Registration("event", "evaluate", EvaluateSettings, "quintain.trainers.events:Evaluate"),
    Registration("event", "stop_at_return", StopAtReturnSettings, "quintain.trainers.events:StopAtReturn"),
    Registration("event", "collect_data", CollectDataSettings, "quintain.trainers.data_events:CollectData"),
    Registration("event", "record_video", RecordVideoSettings, "quintain.trainers.video_event:RecordVideo"),
    Registration("event", "log_data", LogDataSettings, "quintain.trainers.data_events:LogData"),
    Registration("event", "randomize_env", RandomizeEnvSettings, "quintain.trainers.events:RandomizeEnv"),
    Registration(
        "event",
        "sample_conversations",
        SampleConversationsSettings,
        "quintain.experiments.transcripts:SampleConversations",
    ),
    Registration("event", "pretrain_bodies", PretrainBodiesSettings, "quintain.experiments.solo_agent:PretrainBodies"),
    Registration("event", "reset_env", ResetEnvSettings, "quintain.trainers.events:ResetEnv"),
)
