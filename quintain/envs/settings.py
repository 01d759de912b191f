"""Declares the settings of the environments that ship. Imports no torch and no gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings, Range, Settings
from quintain.settings.choice import Choice
from quintain.typing import JsonObject, Keywords


class EnvEventSettings(PartSettings):
    """Calls a function of the environment and its lanes."""

    mode: str = Field(default="reset", min_length=1)
    """startup, reset, step, interval, or a name of your own that `trainer.trigger` fires."""

    interval_step: Count = 10
    """Steps between two calls in mode interval."""

    count_from: Literal["run", "episode"] = "run"
    """Count the steps of an interval over the run, or anew in each episode of a lane."""

    is_global: bool = False
    """Call it once for all lanes instead of with the lanes that are due."""

    def parameters(self) -> Keywords:
        """Returns the keyword arguments of the function: every field of its own."""
        own = type(self).model_fields.keys() - EnvEventSettings.model_fields.keys()
        return {name: getattr(self, name) for name in type(self).model_fields if name in own}


class RandomizeParametersSettings(EnvEventSettings):
    """Draws parameters of the environment anew between a low and a high, for each lane by itself."""

    ranges: dict[str, Range]
    """Low and high by the parameter's name."""


class EnvSettings(PartSettings):
    """Configures an environment of your own that needs nothing but lanes."""

    num_lanes: Count = 8
    """Streams of steps that advance together."""

    group_size: Count = 1
    """Neighbouring lanes that begin their episodes alike, for algorithms that compare them."""

    on_nonfinite: Literal["error", "drop_episode", "clamp"] = "error"
    """What to do with NaN and infinity: stop, leave the episode out and reset its lane, or put finite numbers there."""

    env_events: tuple[Annotated[PartSettings, Choice("env_event")], ...] = ()
    """What happens inside the training lanes' steps and resets."""


class NoEnvSettings(PartSettings):
    """Stands where a run has no environment: beside `experiment.loop`."""

    num_lanes: ClassVar[int] = 0


class GymSettings(EnvSettings):
    """Runs any Gymnasium environment by its id, or one of yours by module:Name."""

    id: str = Field(min_length=1)
    """Gymnasium id such as CartPole-v1, or module:Name of a class or factory."""

    kwargs: Keywords = Field(default_factory=dict)
    """Arguments passed on to the environment."""

    vectorization: Literal["lanes", "native"] = "lanes"
    """One environment object per lane, or the environment's own vector entry point."""

    max_episode_steps: Count | None = None
    """Time limit of an episode; null keeps the limit the environment was registered with."""

    text_observations: Literal["leave_out", "encode"] = "leave_out"
    """What becomes of Text entries of a Dict observation: left out, or encoded as one choice per character."""


class NativeSettings(EnvSettings):
    """Runs a classic-control task that is compiled for this machine, with the numbers of Gymnasium's own."""

    id: Literal[
        "Acrobot-v1",
        "CartPole-v0",
        "CartPole-v1",
        "MountainCar-v0",
        "MountainCarContinuous-v0",
        "Pendulum-v1",
    ]
    """Gymnasium's name of the task."""

    kwargs: Keywords = Field(default_factory=dict)
    """Parameters of the task by Gymnasium's names, such as gravity."""

    max_episode_steps: Count | None = None
    """Time limit of an episode; null keeps the task's own."""


class EnvPoolSettings(EnvSettings):
    """Runs an environment of EnvPool, which steps its lanes in C++ threads; install envpool yourself."""

    id: str = Field(min_length=1)
    """EnvPool's name of the task, such as Pong-v5."""

    kwargs: Keywords = Field(default_factory=dict)
    """Arguments passed on to envpool.make."""

    num_threads: Count | None = None
    """Threads that step lanes; null lets EnvPool choose."""

    max_episode_steps: Count | None = None
    """Time limit of an episode; null keeps the task's own."""


class SamplerSettings(Settings):
    """Draws a number of the task anew for every episode."""

    distribution: Literal["uniform", "gaussian", "ranges"]
    """How it is drawn; evenly from several ranges where it is ranges."""

    numbers: tuple[float, ...]
    """Low and high, or mean and deviation, or low and high of each range in turn."""

    @model_validator(mode="after")
    def _numbers_fit(self) -> SamplerSettings:
        count, pairs = len(self.numbers), zip(self.numbers[::2], self.numbers[1::2], strict=False)
        fits = count >= 2 and count % 2 == 0 if self.distribution == "ranges" else count == 2
        if self.distribution == "gaussian":
            fits = fits and self.numbers[1] >= 0
        elif any(low > high for low, high in pairs):
            fits = False
        if not fits:
            raise PydanticCustomError(
                "sampler", "{d} does not go with {n}", {"d": self.distribution, "n": str(list(self.numbers))}
            )
        return self


class CriterionSettings(Settings):
    """Says when a lesson is learned."""

    behavior: str
    """Whose learning counts."""

    measure: Literal["reward", "progress"] = "reward"
    """What must exceed the threshold: the mean return, or the part of the budget that is spent."""

    threshold: float = 0.0
    """What must be exceeded."""

    min_episodes: Annotated[int, Field(ge=0)] = 0
    """Episodes of the behaviour that the lesson takes at least, and that the mean is over."""

    is_smoothed: bool = True
    """Compare a mean that follows slowly."""

    resets: bool = False
    """Reset the environment when the lesson changes."""


class LessonSettings(Settings):
    """One lesson: a number of the task, or how it is drawn, and how long."""

    name: str = ""
    """What it is called."""

    value: float | None = None
    """The number."""

    sampler: SamplerSettings | None = None
    """How it is drawn, in place of a number."""

    until: CriterionSettings | None = None
    """When the next lesson begins; all but the last have this."""

    @model_validator(mode="after")
    def _has_one(self) -> LessonSettings:
        if (self.value is None) == (self.sampler is None):
            raise PydanticCustomError("lesson", "set one of value and sampler")
        return self


class AgentsSettings(PartSettings):
    """Runs an environment of agents that come and go, of one or several behaviours, by module:Name."""

    has_agents: ClassVar[bool] = True
    """Whether agents come and go, so that there are trajectories in place of lanes."""
    artifacts: ClassVar[str] = "quintain.behaviors.files:BehaviorFiles"
    """module:Name of the files that a run of such an environment leaves beside its checkpoints."""
    behavior_defaults: ClassVar[JsonObject] = {"rollout": {"type": "trajectories"}, "events": []}
    """What behaviours have by default: copies of an environment to evaluate them in may be dear."""

    id: str = Field(min_length=1)
    """module:Name of a class or factory that makes something like ML-Agents' BaseEnv."""

    kwargs: Keywords = Field(default_factory=dict)
    """Arguments passed on to it, beside `seed` and `worker_id` where it takes them."""

    num_lanes: Count = 1
    """Copies of the environment that are stepped together."""

    on_nonfinite: Literal["error", "drop_episode", "clamp"] = "error"
    """What to do with NaN and infinity: stop, leave the agent's episode out, or put finite numbers there."""

    parameters: dict[str, float] = Field(default_factory=dict)
    """Numbers of the task by name, for an environment with `set_parameters` or `set_float_parameter`."""

    samplers: dict[str, SamplerSettings] = Field(default_factory=dict)
    """Numbers that are drawn, by name, for an environment with `set_samplers`; others draw once for each copy."""

    curricula: dict[str, tuple[LessonSettings, ...]] = Field(default_factory=dict)
    """Numbers that change as behaviours learn, by name: the lessons in their order."""

    @field_validator("curricula", mode="before")
    @classmethod
    def _read_lists(cls, given: object) -> object:
        # Strict validation wants tuples, YAML and JSON only know lists.
        if not isinstance(given, Mapping):
            return given
        return {name: tuple(each) if isinstance(each, list) else each for name, each in given.items()}

    @model_validator(mode="after")
    def _lessons_end(self) -> AgentsSettings:
        for name, lessons in self.curricula.items():
            if not lessons or any(each.until is None for each in lessons[:-1]) or lessons[-1].until is not None:
                raise PydanticCustomError(
                    "lessons", "every lesson of {name} but the last has `until`, and the last has none", {"name": name}
                )
            if name in self.parameters or name in self.samplers:
                raise PydanticCustomError("lessons", "{name} is set twice", {"name": name})
        return self


REGISTERED = (
    Registration("env", "agents", AgentsSettings, "quintain.envs.agents.factory:agent_env"),
    Registration("env", "gym", GymSettings, "quintain.envs.gym.make:gym_env"),
    Registration("env", "none", NoEnvSettings, "quintain.envs.base:no_env"),
    Registration("env", "native", NativeSettings, "quintain.envs.native.env:NativeEnv"),
    Registration("env", "envpool", EnvPoolSettings, "quintain.envs.gym.envpool:envpool_env"),
    Registration(
        "env_event",
        "randomize_parameters",
        RandomizeParametersSettings,
        "quintain.envs.shipped_events:randomize_parameters",
    ),
)
