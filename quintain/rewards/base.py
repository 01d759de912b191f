"""The reward signal interface: an algorithm maximises one or more signals, each with its own discount and weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from quintain.core.process_group import ProcessGroup, SingleProcess, join_parts
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.core.state import KeepsState
from quintain.data.fields import Declared
from quintain.data.rollout import Batch, Rollout
from quintain.data.spec import BehaviorSpec
from quintain.rewards.settings import RewardSignalSettings

if TYPE_CHECKING:
    import torch

    from quintain.typing import Array, Metrics


class RewardSignal(KeepsState, ABC):
    """Computes a reward for every step of a rollout, and may learn from the same steps.

    The algorithm connects its signals when it is made: `spec` and `rng` are known from then on, and `build` is called.
    Modules, optimizers and running statistics that a signal keeps in attributes are saved and restored with the run.
    """

    not_state: ClassVar[frozenset[str]] = frozenset({"world", "is_replayed"})

    ignores_ends: bool = False
    """Whether it goes on after the end of an episode, as novelty does: the value of the next state always counts."""

    sees_next_obs: ClassVar[bool] = True
    """Whether it reads next observations; agents' blocks then keep those of every trajectory's end."""

    is_replayed: bool = False
    """Whether its rewards are stored in a replay buffer, and passed through `rescale` when they are drawn."""

    spec: BehaviorSpec
    """Shapes of observations and actions; known from `build` on."""
    rng: Rng
    """Random streams of its own, the same on all ranks; known from `build` on."""
    world: ProcessGroup = SingleProcess()
    """The ranks that learn together."""

    def __init__(self, settings: RewardSignalSettings) -> None:
        self.settings = settings

    @property
    def gamma(self) -> float:
        return self.settings.gamma

    @property
    def strength(self) -> float:
        return self.settings.strength

    def connect(self, spec: BehaviorSpec, rng: Rng) -> None:
        """Sets `spec` and `rng`, and calls `build`; an attribute of these names that the signal has already stays."""
        for name, value in (("spec", spec), ("rng", rng)):
            vars(self).setdefault(name, value)
        self.build()

    def build(self) -> None:
        """Makes networks and optimizers for `self.spec` with draws from `self.rng`; by default nothing."""

    def join(self, world: ProcessGroup) -> None:
        """Learns together with other ranks: its optimizers average gradients, its normalizers see the rows of all."""
        self.world = world
        join_parts(self, world)

    def declare_fields(self) -> Declared:
        """Declares its own fields by name: `{"novelty": Field()}`, or like another one, `like("value")`."""
        return {}

    @abstractmethod
    def evaluate(self, rollout: Rollout) -> Array:
        """Returns rewards [T, N], before strength."""

    def rescale(self, reward: torch.Tensor) -> torch.Tensor:
        """Scales replayed rewards, strength included, when they are drawn; called for the only signal of a run."""
        return reward

    def update(self, batch: Batch, progress: Progress) -> Metrics:
        """Learns from a batch and returns metrics by bare names; called once per cycle, after the algorithm's update.

        The rewards of the batch are computed before, so that a signal never rewards steps that it has learned from.
        """
        return {}
