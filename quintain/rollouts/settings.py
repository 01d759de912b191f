"""Declares the settings of the rollout stores that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quintain.registry import Registration
from quintain.settings.base import Count, PartSettings


class RolloutSettings(PartSettings):
    """Configures how many steps a rollout has and how long it may wait."""

    num_steps: Count = 128
    """Steps of each lane in one rollout."""

    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Policy versions by which experience may lag behind; 0 makes acting and learning take turns."""


class BlockSettings(RolloutSettings):
    """Keeps whole rollouts in blocks that are allocated once and used once."""


REGISTERED = (Registration("rollout", "block", BlockSettings, "quintain.rollouts.store:RolloutBuffer"),)
