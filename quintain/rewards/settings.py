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

    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return, as VecNormalize does. Reported returns
    and evaluations stay those of the environment."""

    clip_reward: Annotated[float, Field(gt=0)] = 10.0
    """Largest absolute value of a normalized reward."""


class ZeroKnowledgeSettings(RewardSignalSettings):
    """The similarity of an adversarial verifier and a simulator, the last two agents of a team."""

    weights: tuple[float, ...] = ()
    """The factor of every agent of the team on the similarity, in the order of the agents."""


REGISTERED = (
    Registration("reward_signal", "extrinsic", ExtrinsicSettings, "quintain.rewards.extrinsic:extrinsic_for"),
    Registration(
        "reward_signal", "zero_knowledge", ZeroKnowledgeSettings, "quintain.experiments.zero_knowledge:ZeroKnowledge"
    ),
)
