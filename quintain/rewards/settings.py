"""Settings of the built-in reward signals. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quintain.core.registry import Registration
from quintain.settings.base import PartSettings


class RewardSignalSettings(PartSettings):
    """Settings of every reward signal: a discount and a weight."""

    gamma: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Discount factor."""

    strength: float = 1.0
    """Factor on the signal before it is summed or averaged with the others."""


class ExtrinsicSettings(RewardSignalSettings):
    """The environment's reward."""


REGISTERED = (Registration("reward_signal", "extrinsic", ExtrinsicSettings, "quintain.rewards.extrinsic:Extrinsic"),)
