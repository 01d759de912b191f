"""Defines `run`: where and how a run happens. Nothing here may change a number; it is not fingerprinted."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from quintain.settings.base import Count, PartSettings, Settings
from quintain.settings.choice import Choice

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DEVICE = re.compile(r"cpu|auto|cuda(:\d+)?")
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)

Seconds = Annotated[float, Field(gt=0)]


def require_run_id(text: str) -> str:
    """Returns the text if it is safe as the name of a directory on every system, and raises otherwise."""
    if not _RUN_ID.fullmatch(text):
        raise PydanticCustomError(
            "run_id",
            'found "{text}", expected up to 64 letters, digits, ".", "_" and "-", beginning with a letter or digit',
            {"text": text[:80]},
        )
    if _WINDOWS_DEVICE.fullmatch(text):
        raise PydanticCustomError("run_id", '"{text}" is the name of a device on Windows', {"text": text})
    return text


def _require_device(text: str) -> str:
    if not _DEVICE.fullmatch(text):
        raise PydanticCustomError("device", 'found "{text}", expected cpu, cuda, cuda:N or auto', {"text": text[:80]})
    return text


class CheckpointSettings(Settings):
    """Says how often a run is made durable and how much of it is kept."""

    every_env_steps: Count | None = None
    """Environment steps between two checkpoints."""

    every_updates: Count | None = None
    """Updates between two checkpoints."""

    every_seconds: Seconds | None = 60.0
    """Time between two checkpoints; null never looks at the clock."""

    keep: Annotated[Count, Field(ge=2)] = 5
    """Newest checkpoints that are kept, beside the best one."""


class ReplayPlaceSettings(Settings):
    """Says where remembered transitions lie; the numbers are the same in both places."""

    max_memory_bytes: Count = 4_000_000_000
    """Bytes up to which they lie in memory; a larger replay lies in a file."""

    directory: str | None = None
    """Folder of that file; null is where the run directory is."""


class ReportSettings(Settings):
    """Says how often a row of metrics is written."""

    every_updates: Count | None = None
    """Updates between two rows; null is every update, or with replay every 1000 environment steps."""

    every_env_steps: Count | None = None
    """Environment steps between two rows, instead of updates."""

    @model_validator(mode="after")
    def _has_one_interval(self) -> ReportSettings:
        if self.every_updates is not None and self.every_env_steps is not None:
            raise PydanticCustomError("interval", "set one of every_env_steps and every_updates")
        return self


class EnvWorkerSettings(Settings):
    """Says in how many processes environments run, and how often they may break."""

    num_workers: Count | None = None
    """Processes that share the lanes; null steps all lanes in the learner's own process."""

    acts_in_halves: bool = False
    """Lets half of the workers step half of the lanes while the policy acts for the other half; may change rounding."""

    step_timeout_seconds: Seconds = 60.0
    """Time after which an environment that does not answer to step() is ended and made anew; only in workers."""

    reset_timeout_seconds: Seconds = 300.0
    """The same for reset(), and for making an environment."""

    max_restarts: Count = 10
    """Failures of one lane within the window that end the run."""

    restart_window_steps: Count = 1000
    """The window: so many steps of the lane."""

    restart_window_seconds: Seconds | None = None
    """A window by the clock instead, which ends runs earlier on fast machines; of older versions."""

    max_failures_in_a_row: Count = 5
    """Failures of one lane without a good step between them that end the run."""

    max_down_seconds: Seconds | None = None
    """Time without a single lane that works, after which the next failure ends the run; null sets no limit."""

    pass_environment: tuple[str, ...] = ()
    """Names of environment variables that workers see although they look like secrets; others are passed on anyway."""


class RunSettings(Settings):
    """Decides where a run happens and what it leaves behind."""

    id: Annotated[str, AfterValidator(require_run_id)] | None = None
    """Name of the run directory; null makes one from the environment, the algorithm and the date."""

    device: Annotated[str, AfterValidator(_require_device)] = "cpu"
    """cpu, cuda, cuda:N, or auto for cuda where there is one."""

    threads: Count = 1
    """Torch threads of this process; recorded, because it can change rounding."""

    placement: Annotated[PartSettings, Choice("placement", default="local")] = Field(default={}, validate_default=True)
    """Where acting happens."""

    env_workers: EnvWorkerSettings = EnvWorkerSettings()
    """Processes for environments, and what becomes of environments that break."""

    checkpoint: CheckpointSettings = CheckpointSettings()
    """When the state is saved."""

    replay: ReplayPlaceSettings = ReplayPlaceSettings()
    """Where remembered transitions lie."""

    report: ReportSettings = ReportSettings()
    """When metrics are written."""

    on_nonfinite_update: Literal["skip", "rollback", "stop"] = "skip"
    """What follows an update with numbers that are not finite: go on without it, go back to a checkpoint, or stop."""

    max_nonfinite_updates: Count = 3
    """Such updates in a row that end the run; ten in a thousand do so too."""

    rollback_learning_rate_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """What the learning rate is multiplied by each time the run goes back."""

    writers: tuple[Annotated[PartSettings, Choice("writer")], ...] = Field(default=("console",), validate_default=True)
    """Who receives the metrics, beside metrics.jsonl."""

    grace_seconds: Seconds = 10.0
    """Time to finish and save after a signal to stop."""
