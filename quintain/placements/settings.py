"""Declares the settings of the placements that ship. Imports no torch."""

from __future__ import annotations

from quintain.registry import Registration
from quintain.settings.base import Count, PartSettings


class PlacementSettings(PartSettings):
    """Configures a placement of your own that needs no settings."""


class LocalSettings(PlacementSettings):
    """Acts and learns in this process, in turns."""

    num_ranks: Count = 1
    """Processes on this machine that share the lanes and learn together; torchrun may start them instead."""


class ThreadsSettings(PlacementSettings):
    """Acts in a second thread of this process, at the same time as learning if rollouts may be stale."""

    num_ranks: Count = 1
    """Processes on this machine that share the lanes and learn together, each with its own two threads."""


class ProcessesSettings(PlacementSettings):
    """Acts in a second process, at the same time as learning if rollouts may be stale."""

    num_ranks: Count = 1
    """Processes on this machine that share the lanes and learn together, each with its own collector process."""


REGISTERED = (
    Registration("placement", "local", LocalSettings, "quintain.placements.local:LocalPlacement"),
    Registration("placement", "threads", ThreadsSettings, "quintain.placements.threads:ThreadsPlacement"),
    Registration("placement", "processes", ProcessesSettings, "quintain.placements.processes:ProcessesPlacement"),
)
