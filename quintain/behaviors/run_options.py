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
    """Draws an environment parameter at each reset."""

    sampler_type: Literal["uniform", "gaussian", "multirangeuniform", "constant"]
    """The distribution."""

    sampler_parameters: dict[str, Any]
    """Its parameters."""

    seed: Whole = -1
    """Seed of its draws; -1 derives one from the run's."""

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
    """Criterion for completing a lesson."""

    behavior: str
    """The behaviour whose progress counts."""

    measure: Literal["reward", "progress"] = "reward"
    """The measure that is compared with the threshold."""

    threshold: float = 0.0
    """The threshold that must be exceeded."""

    min_lesson_length: Natural = 0
    """Minimum number of episodes in the lesson."""

    signal_smoothing: bool = True
    """Compare a smoothed measure."""

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
    """The lesson's name."""

    value: ParameterValue
    """The parameter's value during the lesson."""

    completion_criteria: CompletionCriteriaSettings | None = None
    """When the next lesson starts; required for all but the last."""


class CurriculumSettings(Settings):
    """Changes an environment parameter as behaviours learn."""

    curriculum: tuple[LessonSettings, ...]
    """The lessons in order."""

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
    """The environment."""

    env_path: str | None = None
    """module:Name of an environment; a path is a Unity build."""

    env_args: tuple[str, ...] | None = None
    """Arguments of a Unity build."""

    base_port: Natural = 5005
    """First port of Unity builds."""

    num_envs: Count = 1
    """Number of copies that step together."""

    num_areas: Count = 1
    """Training areas in a Unity build."""

    timeout_wait: Natural = 60
    """Timeout of a Unity build in seconds."""

    seed: Annotated[Whole, Field(ge=-1)] = -1
    """Seed of all random streams; -1 draws one."""

    max_lifetime_restarts: Annotated[Whole, Field(ge=-1)] = 10
    """Restarts of a Unity build in a run."""

    restarts_rate_limit_n: Annotated[Whole, Field(ge=-1)] = 1
    """Restarts of a Unity build in a period."""

    restarts_rate_limit_period_s: Natural = 60
    """That period in seconds."""


class EngineSettings(Settings):
    """Settings of Unity's engine."""

    width: Natural = 84
    """Width in pixels."""

    height: Natural = 84
    """Height in pixels."""

    quality_level: Natural = 5
    """Rendering quality."""

    time_scale: NonNegative = 20.0
    """Speed of the simulation relative to real time."""

    target_frame_rate: Annotated[Whole, Field(ge=-1)] = -1
    """Frames per second."""

    capture_frame_rate: Natural = 60
    """Frames per second of simulated time."""

    no_graphics: bool = False
    """Disable rendering."""

    no_graphics_monitor: bool = False
    """Render in the first copy only."""


class CheckpointSettings(Settings):
    """Where a run is stored and what it starts from."""

    run_id: str | None = None
    """Name of the run."""

    initialize_from: str | None = None
    """Run whose weights to start from."""

    load_model: bool = False
    """Old name of resume."""

    resume: bool = False
    """Resume the run of that name."""

    force: bool = False
    """Move an existing run of that name aside."""

    train_model: bool = False
    """No effect; training is the default unless inference is set."""

    inference: bool = False
    """Run inference without learning."""

    results_dir: str | None = None
    """Folder of runs."""


class TorchSettings(Settings):
    """The device of tensors."""

    device: str | None = None
    """cpu or cuda."""


class RunOptions(Settings):
    """All settings of an ML-Agents trainer configuration."""

    default_settings: TrainerSettings | None = None
    """Defaults of behaviours."""

    behaviors: dict[str, TrainerSettings] = Field(default_factory=dict)
    """One block per behaviour."""

    env_settings: EnvironmentSettings = EnvironmentSettings()
    """The environment."""

    engine_settings: EngineSettings = EngineSettings()
    """Unity's engine."""

    environment_parameters: dict[str, Parameter] = Field(default_factory=dict)
    """Parameters of the environment."""

    checkpoint_settings: CheckpointSettings = CheckpointSettings()
    """Where the run is stored."""

    torch_settings: TorchSettings = TorchSettings()
    """The device of tensors."""

    debug: bool = False
    """No effect; see quintain --debug."""
