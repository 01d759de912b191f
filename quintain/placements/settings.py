"""Declares the settings of the placements that ship. Imports no torch."""

from __future__ import annotations

from quintain.registry import Registration
from quintain.settings.base import PartSettings


class PlacementSettings(PartSettings):
    """Configures a placement of your own that needs no settings."""


class LocalSettings(PlacementSettings):
    """Acts and learns in this process, in turns."""


REGISTERED = (Registration("placement", "local", LocalSettings, "quintain.rollouts.source:LocalSource"),)
