"""Declares the settings of the placements that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quintain.registry import Registration
from quintain.settings.base import Count, PartSettings


class PlacementSettings(PartSettings):
    """Configures a placement of your own that needs no settings."""


class LocalSettings(PlacementSettings):
    """Acts and learns in this process, in turns."""

    num_ranks: Count = 1
    """Processes on this machine that share the lanes and learn together; torchrun may start them instead."""

    max_failures: Annotated[int, Field(ge=0)] = 3
    """Ranks that may die one after another, with no checkpoint between them, before the run ends; 0 ends it at once."""


class ThreadsSettings(PlacementSettings):
    """Acts in a second thread of this process, at the same time as learning if rollouts may be stale."""

    num_ranks: Count = 1
    """Processes on this machine that share the lanes and learn together, each with its own two threads."""


class ProcessesSettings(PlacementSettings):
    """Acts in a second process, at the same time as learning if rollouts may be stale."""

    num_ranks: Count = 1
    """Processes on this machine that share the lanes and learn together, each with its own collector process."""


REGISTERED = (
    Registration("placement", "local", LocalSettings, "quintain.rollouts.source:LocalSource"),
    Registration("placement", "threads", ThreadsSettings, "quintain.placements.threads:ThreadsPlacement"),
    Registration("placement", "processes", ProcessesSettings, "quintain.placements.processes:ProcessesPlacement"),
)
