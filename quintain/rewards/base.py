"""What an algorithm should maximise: one or more signals, each with its own discount and weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from quintain.core.state import KeepsState
from quintain.data.fields import Declared
from quintain.data.rollout import Rollout
from quintain.rewards.settings import RewardSignalSettings

if TYPE_CHECKING:
    from quintain.typing import Array


class RewardSignal(KeepsState, ABC):
    """Gives every step of a rollout a reward."""

    ignores_ends: bool = False
    """Whether it goes on after the end of an episode, as what is new does: what follows is always expected then."""

    def __init__(self, settings: RewardSignalSettings) -> None:
        self.settings = settings

    @property
    def gamma(self) -> float:
        return self.settings.gamma

    @property
    def strength(self) -> float:
        return self.settings.strength

    def declare_fields(self) -> Declared:
        """Declares fields of its own by name: `{"novelty": Field()}`, or as another one, `like("value")`."""
        return {}

    @abstractmethod
    def evaluate(self, rollout: Rollout) -> Array:
        """Returns rewards [T, N], before strength."""
