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


REGISTERED = (Registration("placement", "local", LocalSettings, "quintain.rollouts.source:LocalSource"),)
