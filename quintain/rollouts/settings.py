"""Declares the settings of the rollout stores that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from quintain.registry import Registration
from quintain.settings.base import Count, PartSettings


class RolloutSettings(PartSettings):
    """Configures how many steps a rollout has and how long it may wait."""

    keeps_replay: ClassVar[bool] = False
    """Whether experience is kept beyond the update that it was collected for."""
    report_every_env_steps: ClassVar[int] = 1
    """Steps between two rows of metrics, where the run does not say; 1 is every update."""

    num_steps: Count = 128
    """Steps of each lane in one rollout."""

    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Policy versions by which experience may lag behind; 0 makes acting and learning take turns."""


class BlockSettings(RolloutSettings):
    """Keeps whole rollouts in blocks that are allocated once and used once."""


class ReplaySettings(RolloutSettings):
    """Keeps the newest transitions, to learn from each many times."""

    keeps_replay: ClassVar[bool] = True
    report_every_env_steps: ClassVar[int] = 1000

    num_steps: Count = 1
    """Steps of each lane between two updates."""

    buffer_size: Count = 1_000_000
    """Transitions that are kept; the oldest make room for new ones."""

    num_return_steps: Count = 1
    """Rewards that are added up before the critic is asked what follows (n-step returns)."""


REGISTERED = (
    Registration("rollout", "block", BlockSettings, "quintain.rollouts.store:RolloutBuffer"),
    Registration("rollout", "replay", ReplaySettings, "quintain.rollouts.replay:ReplayBuffer"),
)
