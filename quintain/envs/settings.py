"""Settings of the built-in environments. Imports no torch and no gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from quintain.core import registry
from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings, Range, Settings
from quintain.settings.choice import Choice
from quintain.typing import JsonObject, Keywords


class EnvEventSettings(PartSettings):
    """Calls a function with the environment and lane ids."""

    mode: str = Field(default="reset", min_length=1)
    """startup, reset, step, interval, or a custom name that `trainer.trigger` fires."""

    interval_step: Count = 10
    """Steps between two calls in mode interval."""

    count_from: Literal["run", "episode"] = "run"
    """Count the steps of an interval over the run, or from the start of each lane's episode."""

    is_global: bool = False
    """Call it once for all lanes instead of with the lanes that are due."""

    def parameters(self) -> Keywords:
        """Returns the keyword arguments of the function: all fields of the subclass."""
        own = type(self).model_fields.keys() - EnvEventSettings.model_fields.keys()
        return {name: getattr(self, name) for name in type(self).model_fields if name in own}


class RandomizeParametersSettings(EnvEventSettings):
    """Domain randomization: draws environment parameters uniformly between low and high, per lane."""

    ranges: dict[str, Range]
    """Low and high by the parameter's name."""


class EnvSettings(PartSettings):
    """Settings of a custom environment that needs only the number of lanes."""

    num_lanes: Count = 8
    """Number of parallel environments (lanes) that step together."""

    num_collectors: Count = 1
    """Number of equal groups of lanes on each rank that act by themselves; may change rounding."""

    group_size: Count = 1
    """Number of neighbouring lanes with equal initial states, for algorithms that compare episodes (GRPO)."""

    on_nonfinite: Literal["error", "drop_episode", "clamp"] = "error"
    """NaN and infinity in observations or rewards: stop (error), drop the episode and reset its lane, or clamp to
    finite values."""

    env_events: tuple[Annotated[PartSettings, Choice("env_event")], ...] = ()
    """Events inside the training lanes' steps and resets."""


class NoEnvSettings(PartSettings):
    """For a run without an environment: beside `experiment.loop`."""

    num_lanes: ClassVar[int] = 0


class WrapperSettings(Settings):
    """A wrapper around each environment of a lane."""

    type: str = Field(min_length=1)
    """Name of one of Gymnasium's wrappers, such as RescaleAction, or module:Name of yours."""

    kwargs: Keywords = Field(default_factory=dict)
    """Keyword arguments of the wrapper, after the environment."""

    in_evaluation: bool = True
    """Whether environments of evaluations are wrapped too."""


@dataclass(frozen=True)
class Preset:
    """A set of wrappers by one name."""

    kwargs: JsonObject
    """Keyword arguments that the environment needs for these wrappers."""
    wrappers: tuple[WrapperSettings, ...]
    frame_stack: int
    info_metrics: tuple[str, ...]


_ATARI = "quintain.envs.gym.atari"
PRESETS = {
    "atari": Preset(
        {"frameskip": 1, "obs_type": "ram"},
        (
            WrapperSettings(type=f"{_ATARI}:AtariFrames"),
            WrapperSettings(type=f"{_ATARI}:EpisodicLife", in_evaluation=False),
            WrapperSettings(type=f"{_ATARI}:SignReward", in_evaluation=False),
        ),
        4,
        ("game_return",),
    )
}
"""Presets by name."""


class GymSettings(EnvSettings):
    """A Gymnasium environment by its id, or one of yours by module:Name."""

    id: str = Field(min_length=1)
    """Gymnasium id such as CartPole-v1, or module:Name of a class or factory."""

    kwargs: Keywords = Field(default_factory=dict)
    """Keyword arguments of the environment."""

    vectorization: Literal["lanes", "native"] = "lanes"
    """One environment object per lane, or the environment's own vectorized entry point."""

    max_episode_steps: Count | None = None
    """Time limit of an episode; null keeps the limit the environment was registered with."""

    text_observations: Literal["leave_out", "encode"] = "leave_out"
    """Text entries of a Dict observation: leave them out, or encode each character as a discrete value."""

    wrappers: tuple[WrapperSettings, ...] = ()
    """Wrappers around each environment, from the inside out: names of Gymnasium's, or module:Name of yours."""

    frame_stack: Count | None = None
    """Number of recent observations that are stacked to one, outside of all wrappers; null is the preset's, or 1."""

    preset: Literal["atari"] | None = None
    """A set of wrappers by one name. atari: no-ops, frame skip with maximum, 84x84 grey, 4 frames; in training also an
    end at each lost life, and signs of rewards."""

    use_action_masks: bool = True
    """Use the environment's action masks, if it has some; else they are ignored, and all actions allowed."""

    info_metrics: tuple[str, ...] = ()
    """Entries of info at the end of an episode whose means over the last 100 episodes are reported as info/<name>."""

    @field_validator("wrappers", "info_metrics", mode="before")
    @classmethod
    def _read_lists(cls, given: object, field: ValidationInfo) -> object:
        # Strict validation wants tuples, YAML and JSON only know lists; one entry may stand alone.
        entries = [given] if isinstance(given, str | Mapping) else given
        if not isinstance(entries, list | tuple):
            return given
        return tuple(map(_written_out, entries) if field.field_name == "wrappers" else entries)

    @model_validator(mode="after")
    def _wraps_lanes(self) -> GymSettings:
        if self.vectorization == "native" and self.layers:
            raise PydanticCustomError(
                "wrappers",
                "wrappers are around the environment of each lane, and vectorization native has one for all; leave one "
                "of them out",
            )
        return self

    @property
    def layers(self) -> tuple[WrapperSettings, ...]:
        """All wrappers from the inside out: those of the preset, those of the settings, and the stack of frames."""
        preset = PRESETS.get(self.preset or "")
        num_frames = self.frame_stack or (preset.frame_stack if preset else 1)
        stack = WrapperSettings(type="FrameStackObservation", kwargs={"stack_size": num_frames})
        return (*(preset.wrappers if preset else ()), *self.wrappers, *((stack,) if num_frames > 1 else ()))

    @property
    def env_kwargs(self) -> Keywords:
        """The keyword arguments of the environment, with those that the preset needs."""
        preset = PRESETS.get(self.preset or "")
        return {**(preset.kwargs if preset else {}), **self.kwargs}

    @property
    def episode_metrics(self) -> tuple[str, ...]:
        """The entries of info that are reported, with those of the preset."""
        preset = PRESETS.get(self.preset or "")
        return tuple(dict.fromkeys((*self.info_metrics, *(preset.info_metrics if preset else ()))))

    def for_evaluation(self) -> GymSettings:
        """Returns the settings of environments of evaluations: without wrappers that only training has."""
        if all(each.in_evaluation for each in self.layers):
            return self
        kept = tuple(each for each in self.layers if each.in_evaluation)
        written_out = {"kwargs": self.env_kwargs, "info_metrics": self.episode_metrics}
        return self.model_copy(update={"wrappers": kept, "frame_stack": None, "preset": None, **written_out})


def own_wrappers(settings: PartSettings | None) -> tuple[Registration, ...]:
    """Returns the wrappers of an environment that no other process can import: those of a script or a function."""
    layers = settings.layers if isinstance(settings, GymSettings) else ()
    known = registry.names("wrapper") if layers else ()
    found = (registry.only_here("wrapper", each.type) for each in layers if each.type in known)
    return tuple(each for each in found if each is not None)


def _written_out(wrapper: object) -> object:
    """Returns a wrapper that is given by its name, or by its name with keyword arguments as in rl-zoo's files."""
    if isinstance(wrapper, str):
        return {"type": wrapper}
    if isinstance(wrapper, Mapping) and "type" not in wrapper and len(wrapper) == 1:
        [(name, kwargs)] = wrapper.items()
        return {"type": name, "kwargs": kwargs or {}}
    return wrapper


class NativeSettings(EnvSettings):
    """A classic-control task, compiled for this machine; results equal Gymnasium's bitwise."""

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
    """An EnvPool environment, which steps its lanes in C++ threads; install envpool yourself."""

    id: str = Field(min_length=1)
    """EnvPool's name of the task, such as Pong-v5."""

    kwargs: Keywords = Field(default_factory=dict)
    """Keyword arguments of envpool.make."""

    num_threads: Count | None = None
    """Threads that step lanes; null lets EnvPool choose."""

    max_episode_steps: Count | None = None
    """Time limit of an episode; null keeps the task's own."""


class SamplerSettings(Settings):
    """Samples an environment parameter at the start of every episode."""

    distribution: Literal["uniform", "gaussian", "ranges"]
    """The distribution; `ranges` draws uniformly from several ranges."""

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
    """Criterion for completing a lesson of a curriculum."""

    behavior: str
    """The behaviour whose progress counts."""

    measure: Literal["reward", "progress"] = "reward"
    """The compared measure: the mean return, or the completed fraction of the budget."""

    threshold: float = 0.0
    """The threshold that must be exceeded."""

    min_episodes: Annotated[int, Field(ge=0)] = 0
    """Minimum number of the behaviour's episodes in a lesson, and the window of the mean."""

    is_smoothed: bool = True
    """Compare an exponentially smoothed mean."""

    resets: bool = False
    """Reset the environment when the lesson changes."""


class LessonSettings(Settings):
    """A lesson of a curriculum: the value or distribution of an environment parameter, and when it is completed."""

    name: str = ""
    """The lesson's name."""

    value: float | None = None
    """The parameter's value."""

    sampler: SamplerSettings | None = None
    """The parameter's distribution, in place of a value."""

    until: CriterionSettings | None = None
    """When the next lesson starts; required for all lessons but the last."""

    @model_validator(mode="after")
    def _has_one(self) -> LessonSettings:
        if (self.value is None) == (self.sampler is None):
            raise PydanticCustomError("lesson", "set one of value and sampler")
        return self


class ScenarioSettings(EnvSettings):
    """Conversations between the agents of an experiment: a lane is one agent of one conversation."""

    hyper_params: Keywords = Field(default_factory=dict)
    """The experiment's hyper-parameters, as `HyperParameters.to_dict` writes them."""

    shuffle_messages: bool = False
    """Give every message to another conversation, in evaluations: accuracy then shows if messages carry information."""


class AgentsSettings(PartSettings):
    """A multi-agent environment whose agents come and go, with one or several behaviours, by module:Name."""

    has_agents: ClassVar[bool] = True
    """Whether agents come and go, so that there are trajectories in place of lanes."""
    artifacts: ClassVar[str] = "quintain.behaviors.files:BehaviorFiles"
    """module:Name of the writer of files that such a run leaves beside its checkpoints."""
    behavior_defaults: ClassVar[JsonObject] = {"rollout": {"type": "trajectories"}, "events": []}
    """Defaults of behaviours: no evaluation during training, because copies of such environments can be expensive."""

    id: str = Field(min_length=1)
    """module:Name of a class or factory of an environment like ML-Agents' BaseEnv."""

    kwargs: Keywords = Field(default_factory=dict)
    """Keyword arguments, in addition to `seed` and `worker_id` where the factory takes them."""

    num_lanes: Count = 1
    """Number of copies of the environment that step together."""

    num_collectors: Count = 1
    """Number of equal groups of copies on each rank that act by themselves, each with its share of a batch."""

    on_nonfinite: Literal["error", "drop_episode", "clamp"] = "error"
    """NaN and infinity: stop (error), drop the agent's episode, or clamp to finite values."""

    parameters: dict[str, float] = Field(default_factory=dict)
    """Environment parameters by name, for an environment with `set_parameters` or `set_float_parameter`."""

    samplers: dict[str, SamplerSettings] = Field(default_factory=dict)
    """Environment parameters with a distribution, for an environment with `set_samplers`; others draw once per copy."""

    curricula: dict[str, tuple[LessonSettings, ...]] = Field(default_factory=dict)
    """Curricula by environment parameter: the lessons in order."""

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
    Registration("env", "scenario", ScenarioSettings, "quintain.experiments.scenario_env:ScenarioEnv"),
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
