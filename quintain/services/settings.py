"""Declares the settings of the statistics writers that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quintain.registry import Registration
from quintain.settings.base import PartSettings


class WriterSettings(PartSettings):
    """Configures a statistics writer of your own that needs no settings."""


class ConsoleSettings(WriterSettings):
    """Shows progress in the terminal, or as plain lines where there is none."""

    every_seconds: Annotated[float, Field(gt=0)] = 2.0
    """Time between two plain lines."""


REGISTERED = (Registration("writer", "console", ConsoleSettings, "quintain.services.console:ConsoleWriter"),)
