"""Declares the settings of the reward signals that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from quintain.core.registry import Registration
from quintain.settings.base import PartSettings


class RewardSignalSettings(PartSettings):
    """Configures what every reward signal has: a horizon and a weight."""

    gamma: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Discount of the next step's return."""

    strength: float = 1.0
    """Factor on the signal before it is added to the others, or averaged with them."""


class ExtrinsicSettings(RewardSignalSettings):
    """Uses the reward of the environment."""


REGISTERED = (Registration("reward_signal", "extrinsic", ExtrinsicSettings, "quintain.rewards.extrinsic:Extrinsic"),)
