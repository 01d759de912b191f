"""Settings of the built-in placements. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings


class PlacementSettings(PartSettings):
    """Settings of a custom placement that needs none of its own."""


class LocalSettings(PlacementSettings):
    """Acts and learns in turns, in this process."""

    num_ranks: Count = 1
    """Processes on this machine that share the lanes and learn together; torchrun may start them instead."""

    max_failures: Annotated[int, Field(ge=0)] = 3
    """Ranks that may die one after another, with no checkpoint between them, before the run ends; 0 ends it at once."""


class ThreadsSettings(LocalSettings):
    """Acts in a thread for each collector; asynchronous, with `rollout.max_staleness` of at least 1."""


class ProcessesSettings(LocalSettings):
    """Acts in other processes beside each rank; asynchronous, with `rollout.max_staleness` of at least 1."""

    num_processes: Count | None = None
    """Processes that share the collectors (`experiment.env.num_collectors`); null is one for each."""


REGISTERED = (
    Registration("placement", "local", LocalSettings, "quintain.placements.local:LocalSource"),
    Registration("placement", "threads", ThreadsSettings, "quintain.placements.threads:ThreadsPlacement"),
    Registration("placement", "processes", ProcessesSettings, "quintain.placements.processes:ProcessesPlacement"),
)
