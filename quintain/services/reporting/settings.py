"""Settings of the built-in statistics writers. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from quintain.core.registry import Registration
from quintain.settings.base import PartSettings


class WriterSettings(PartSettings):
    """Settings of a custom statistics writer that needs none of its own."""

    in_background: ClassVar[bool] = False
    """Whether the writer runs asynchronously in a background thread, so that training never waits for it."""
    in_directory: ClassVar[bool] = False
    """Whether the writer writes files to the run's directory, so that a run with it has one."""


class ConsoleSettings(WriterSettings):
    """Progress in the terminal, or plain lines where there is none."""

    every_seconds: Annotated[float, Field(gt=0)] = 2.0
    """Seconds between two plain lines."""


class TensorBoardSettings(WriterSettings):
    """TensorBoard event files in the run's directory."""

    in_background: ClassVar[bool] = True
    in_directory: ClassVar[bool] = True


class WandbSettings(WriterSettings):
    """Sends rows to Weights & Biases, or stores them for `wandb sync` if there is no key."""

    in_background: ClassVar[bool] = True

    project: str = "quintain"
    """The run's project."""

    entity: str | None = None
    """User or team of the project; null is the key's owner."""

    group: str | None = None
    """Group of runs that the run is shown in."""

    tags: tuple[str, ...] = ()
    """Labels of the run."""

    silent: bool = True
    """Keep wandb's own lines, such as the address of the run's page, from the terminal."""

    mode: Literal["auto", "online", "offline"] = "auto"
    """online sends rows at once; auto does so if WANDB_API_KEY is set."""


class NoWriterSettings(WriterSettings):
    """Leaves out the default writers: only those that are named beside it write."""


REGISTERED = (
    Registration("writer", "none", NoWriterSettings, "quintain.services.reporting.writers:NoWriter"),
    Registration("writer", "console", ConsoleSettings, "quintain.services.reporting.console:ConsoleWriter"),
    Registration(
        "writer", "tensorboard", TensorBoardSettings, "quintain.services.reporting.tensorboard_writer:TensorBoardWriter"
    ),
    Registration("writer", "wandb", WandbSettings, "quintain.services.reporting.wandb_writer:WandbWriter"),
)
