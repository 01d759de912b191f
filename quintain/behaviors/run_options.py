"""ML-Agents' settings of a whole run: environment, engine, parameters, checkpoints. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from quintain.behaviors.part_settings import Natural, NonNegative, Whole
from quintain.behaviors.trainer_settings import TrainerSettings
from quintain.settings.base import Count, Settings

SAMPLERS: Mapping[str, tuple[str, ...]] = {
    "uniform": ("min_value", "max_value"),
    "gaussian": ("mean", "st_dev"),
    "multirangeuniform": ("intervals",),
    "constant": ("value",),
}
"""Each sampler and the names of its parameters."""


class SamplerSettings(Settings):
    """Draws a parameter of the environment at each reset."""

    sampler_type: Literal["uniform", "gaussian", "multirangeuniform", "constant"]
    """The distribution."""

    sampler_parameters: dict[str, Any]
    """Its numbers."""

    seed: Whole = -1
    """Start of its random numbers; -1 takes one from the run's."""

    @model_validator(mode="after")
    def _parameters_fit(self) -> SamplerSettings:
        known, given = SAMPLERS[self.sampler_type], self.sampler_parameters
        for name in given:
            if name not in known:
                raise PydanticCustomError(
                    "sampler", "{t} has {k}, and not {n}", {"t": self.sampler_type, "k": ", ".join(known), "n": name}
                )
        pairs = given.get("intervals", []) if self.sampler_type == "multirangeuniform" else []
        if self.sampler_type == "uniform":
            pairs = [[given.get("min_value", 0.0), given.get("max_value", 1.0)]]
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2 or pair[0] > pair[1]:
                raise PydanticCustomError("sampler", "found {p}, expected [low, high]", {"p": str(pair)})
        return self


class CompletionCriteriaSettings(Settings):
    """Says when a lesson is learned."""

    behavior: str
    """Whose progress counts."""

    measure: Literal["reward", "progress"] = "reward"
    """What is compared with the threshold."""

    threshold: float = 0.0
    """What must be exceeded."""

    min_lesson_length: Natural = 0
    """Episodes that the lesson takes at least."""

    signal_smoothing: bool = True
    """Compare a smoothed number."""

    require_reset: bool = False
    """Reset the environment when the lesson changes."""


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return "curriculum" if "curriculum" in value else "sampler"
    return (
        "curriculum"
        if isinstance(value, CurriculumSettings)
        else "sampler"
        if isinstance(value, Settings)
        else "number"
    )


Number = Annotated[float, Tag("number")]
Sampler = Annotated[SamplerSettings, Tag("sampler")]
ParameterValue = Annotated[Number | Sampler, Discriminator(_kind)]


class LessonSettings(Settings):
    """One lesson of a curriculum."""

    name: str
    """What it is called."""

    value: ParameterValue
    """The parameter during the lesson."""

    completion_criteria: CompletionCriteriaSettings | None = None
    """When the next one begins; all but the last have this."""


class CurriculumSettings(Settings):
    """Changes a parameter as behaviours learn."""

    curriculum: tuple[LessonSettings, ...]
    """The lessons in their order."""

    @model_validator(mode="after")
    def _lessons_end(self) -> CurriculumSettings:
        if not self.curriculum:
            raise PydanticCustomError("curriculum", "expected at least one lesson")
        for lesson in self.curriculum[:-1]:
            if lesson.completion_criteria is None:
                raise PydanticCustomError(
                    "curriculum", "lesson {n} needs completion_criteria; only the last has none", {"n": lesson.name}
                )
        return self


Curriculum = Annotated[CurriculumSettings, Tag("curriculum")]
Parameter = Annotated[Number | Sampler | Curriculum, Discriminator(_kind)]


class EnvironmentSettings(Settings):
    """Says what is acted in."""

    env_path: str | None = None
    """module:Name of an environment; a path is a Unity build."""

    env_args: tuple[str, ...] | None = None
    """Arguments of a Unity build."""

    base_port: Natural = 5005
    """First port of Unity builds."""

    num_envs: Count = 1
    """Copies that are stepped together."""

    num_areas: Count = 1
    """Training areas in a Unity build."""

    timeout_wait: Natural = 60
    """Seconds that a Unity build may take to answer."""

    seed: Annotated[Whole, Field(ge=-1)] = -1
    """Start of every random stream; -1 draws one."""

    max_lifetime_restarts: Annotated[Whole, Field(ge=-1)] = 10
    """Restarts of a Unity build in a run."""

    restarts_rate_limit_n: Annotated[Whole, Field(ge=-1)] = 1
    """Restarts of a Unity build in a period."""

    restarts_rate_limit_period_s: Natural = 60
    """That period in seconds."""


class EngineSettings(Settings):
    """Configures Unity's engine."""

    width: Natural = 84
    """Pixels."""

    height: Natural = 84
    """Pixels."""

    quality_level: Natural = 5
    """How well it draws."""

    time_scale: NonNegative = 20.0
    """How much faster than life it runs."""

    target_frame_rate: Annotated[Whole, Field(ge=-1)] = -1
    """Frames in a second."""

    capture_frame_rate: Natural = 60
    """Frames in a second of the game's own time."""

    no_graphics: bool = False
    """Draw nothing."""

    no_graphics_monitor: bool = False
    """Draw in the first copy only."""


class CheckpointSettings(Settings):
    """Says where a run is kept and what it begins from."""

    run_id: str | None = None
    """Name of the run."""

    initialize_from: str | None = None
    """Run whose weights to begin with."""

    load_model: bool = False
    """Old name of resume."""

    resume: bool = False
    """Continue the run of that name."""

    force: bool = False
    """Move an existing run of that name aside."""

    train_model: bool = False
    """Without effect; training is what happens unless inference is set."""

    inference: bool = False
    """Act without learning."""

    results_dir: str | None = None
    """Folder of runs."""


class TorchSettings(Settings):
    """Says where tensors lie."""

    device: str | None = None
    """cpu or cuda."""


class RunOptions(Settings):
    """Everything that a trainer configuration of ML-Agents says."""

    default_settings: TrainerSettings | None = None
    """What behaviours have where their own block says nothing."""

    behaviors: dict[str, TrainerSettings] = Field(default_factory=dict)
    """One block for each behaviour."""

    env_settings: EnvironmentSettings = EnvironmentSettings()
    """What is acted in."""

    engine_settings: EngineSettings = EngineSettings()
    """Unity's engine."""

    environment_parameters: dict[str, Parameter] = Field(default_factory=dict)
    """Numbers of the environment."""

    checkpoint_settings: CheckpointSettings = CheckpointSettings()
    """Where the run is kept."""

    torch_settings: TorchSettings = TorchSettings()
    """Where tensors lie."""

    debug: bool = False
    """Without effect; see quintain --debug."""
