"""The environment's reward."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.rewards.base import RewardSignal

if TYPE_CHECKING:
    from quintain.typing import Array


class Extrinsic(RewardSignal):
    """Returns the environment's reward unchanged."""

    sees_next_obs: ClassVar[bool] = False

    def evaluate(self, rollout: Rollout) -> Array:
        return rollout.array(f.REWARD)[:-1]
