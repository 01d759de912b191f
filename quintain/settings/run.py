"""Defines `run`: where and how a run executes. Nothing here may change results; it is not fingerprinted."""

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
    """How often checkpoints are committed, and how many are kept."""

    every_env_steps: Count | None = None
    """Environment steps between two checkpoints."""

    every_updates: Count | None = None
    """Updates between two checkpoints."""

    every_seconds: Seconds | None = 60.0
    """Seconds between two checkpoints; null ignores the clock."""

    keep: Annotated[Count, Field(ge=2)] = 5
    """Number of newest checkpoints to keep, in addition to the best one."""

    keep_every_updates: Count | None = None
    """Keep every checkpoint whose number of updates is a multiple of this, however old."""


class ReplayPlaceSettings(Settings):
    """Where the replay buffer is stored; results do not depend on it."""

    max_memory_bytes: Count = 4_000_000_000
    """Size in bytes up to which the replay buffer is held in memory; a larger one is in a memory-mapped file."""

    directory: str | None = None
    """Folder of that file; null is the run directory's."""


class ReportSettings(Settings):
    """How often a row of metrics is written."""

    every_updates: Count | None = None
    """Updates between two rows; null is every update, or with a replay buffer every 1000 environment steps."""

    every_env_steps: Count | None = None
    """Environment steps between two rows, instead of updates."""

    @model_validator(mode="after")
    def _has_one_interval(self) -> ReportSettings:
        if self.every_updates is not None and self.every_env_steps is not None:
            raise PydanticCustomError("interval", "set one of every_env_steps and every_updates")
        return self


class EnvWorkerSettings(Settings):
    """Worker processes for environments, and the budget of their failures."""

    num_workers: Count | None = None
    """Number of worker processes that share the lanes; null steps all lanes in the learner's process."""

    acts_in_halves: bool = False
    """Let half of the workers step half of the lanes while the policy acts for the other half; may change rounding."""

    step_timeout_seconds: Seconds = 60.0
    """Timeout of step(); an environment that exceeds it is killed and restarted. Only in workers."""

    reset_timeout_seconds: Seconds = 300.0
    """Timeout of reset(), and of making an environment."""

    max_restarts: Count = 10
    """Failures of one lane within the window that end the run."""

    restart_window_steps: Count = 1000
    """Length of the window in steps of the lane."""

    restart_window_seconds: Seconds | None = None
    """Length of the window in seconds instead, which ends runs earlier on fast machines; of older versions."""

    max_failures_in_a_row: Count = 5
    """Failures of one lane in a row, without a good step between them, that end the run."""

    max_down_seconds: Seconds | None = None
    """Seconds without any working lane, after which the next failure ends the run; null sets no limit."""

    pass_environment: tuple[str, ...] = ()
    """Names of environment variables that workers get although they look like secrets; all others are passed on
    anyway."""


class RunSettings(Settings):
    """Where a run executes and which files it writes."""

    id: Annotated[str, AfterValidator(require_run_id)] | None = None
    """Name of the run directory; null makes one from the environment, the algorithm and the date."""

    code_dir: str | None = None
    """Folder of modules that settings name, after the import path and the current directory; not searched for runs of
    others."""

    device: Annotated[str, AfterValidator(_require_device)] = "cpu"
    """cpu, cuda, cuda:N, or auto for cuda where there is one."""

    threads: Count = 1
    """Number of torch threads of this process; recorded, because it can change rounding."""

    placement: Annotated[PartSettings, Choice("placement", default="local")] = Field(default={}, validate_default=True)
    """Where actors run."""

    env_workers: EnvWorkerSettings = EnvWorkerSettings()
    """Worker processes for environments, and the handling of environments that break."""

    checkpoint: CheckpointSettings = CheckpointSettings()
    """When checkpoints are committed."""

    replay: ReplayPlaceSettings = ReplayPlaceSettings()
    """Where the replay buffer is stored."""

    report: ReportSettings = ReportSettings()
    """When metrics are written."""

    on_nonfinite_update: Literal["skip", "rollback", "stop"] = "skip"
    """Handling of updates that are not finite (NaN, infinity): skip the update, roll back to a checkpoint, or stop."""

    max_nonfinite_updates: Count = 3
    """Number of such updates in a row that end the run; ten in a thousand do so too."""

    rollback_learning_rate_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Factor on the learning rate at each rollback."""

    writers: tuple[Annotated[PartSettings, Choice("writer")], ...] = Field(default=("console",), validate_default=True)
    """Destinations of metrics, in addition to metrics.jsonl."""

    grace_seconds: Seconds | None = None
    """Seconds to finish and save after a signal to stop, after which the process ends with its last checkpoint; null
    takes as long as needed."""
