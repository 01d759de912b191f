"""Declares the settings of the statistics writers that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from quintain.core.registry import Registration
from quintain.settings.base import PartSettings


class WriterSettings(PartSettings):
    """Configures a statistics writer of your own that needs no settings."""

    in_background: ClassVar[bool] = False
    """Whether the writer works in a thread of its own, so that training never waits for it."""


class ConsoleSettings(WriterSettings):
    """Shows progress in the terminal, or as plain lines where there is none."""

    every_seconds: Annotated[float, Field(gt=0)] = 2.0
    """Time between two plain lines."""


class TensorBoardSettings(WriterSettings):
    """Writes TensorBoard event files into the run's directory."""

    in_background: ClassVar[bool] = True


class WandbSettings(WriterSettings):
    """Sends rows to Weights & Biases, or keeps them in files for `wandb sync` where there is no key."""

    in_background: ClassVar[bool] = True

    project: str = "quintain"
    """Project that the run belongs to."""

    entity: str | None = None
    """User or team that the project belongs to; null is the key's owner."""

    mode: Literal["auto", "online", "offline"] = "auto"
    """Whether rows are sent at once; auto does so if WANDB_API_KEY is set."""


REGISTERED = (
    Registration("writer", "console", ConsoleSettings, "quintain.services.reporting.console:ConsoleWriter"),
    Registration(
        "writer", "tensorboard", TensorBoardSettings, "quintain.services.reporting.tensorboard_writer:TensorBoardWriter"
    ),
    Registration("writer", "wandb", WandbSettings, "quintain.services.reporting.wandb_writer:WandbWriter"),
)
