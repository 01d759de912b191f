"""Losses beside the algorithm's: behavioural cloning, inverse models, representation learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import nn

from quintain.algorithms.losses import Loss
from quintain.algorithms.minibatches import Minibatch
from quintain.algorithms.settings import AuxiliaryLossSettings
from quintain.core.process_group import ProcessGroup, SingleProcess, join_parts
from quintain.core.rng import Rng
from quintain.core.state import KeepsState
from quintain.data.fields import Declared
from quintain.data.spec import BehaviorSpec
from quintain.policies.base import Policy


class AuxiliaryLoss(KeepsState, ABC):
    """A term that is added to the algorithm's loss, times `coef`, in every gradient step.

    Parameters of modules that it keeps in attributes are trained by the algorithm's optimizer. All its attributes are
    saved, but for the policy.
    """

    not_state: ClassVar[frozenset[str]] = frozenset({"policy", "world"})

    minibatch_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that minibatches must have beside those of the algorithm."""

    def __init__(self, settings: AuxiliaryLossSettings, policy: Policy, rng: Rng) -> None:
        self.settings = settings
        self.policy = policy
        self.rng = rng
        """Random streams of its own: the same on all ranks while it is made, and others on each rank from then on."""
        self.world: ProcessGroup = SingleProcess()

    def join(self, world: ProcessGroup) -> None:
        """Learns together with other ranks: draws of its own on each, and gradients that are averaged."""
        self.rng = self.rng.child(f"rank_{world.rank}") if world.rank else self.rng
        join_parts(self, world)

    def declare_fields(self) -> Declared:
        """Declares fields of its own by name, such as `{"weight": Field()}`; `minibatch_fields` asks for them."""
        return {}

    @property
    def spec(self) -> BehaviorSpec:
        """The shapes of observations and actions."""
        return self.policy.spec

    def to(self, device: torch.device) -> None:
        """Moves its modules to where the policy is."""
        for part in vars(self).values():
            if isinstance(part, nn.Module) and part is not self.policy:
                part.to(device)

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the parameters that the algorithm's optimizer trains for it, by name: all of its own modules."""
        for name, part in vars(self).items():
            if isinstance(part, nn.Module) and name not in self.not_state:
                yield from part.named_parameters(prefix=name)

    @abstractmethod
    def loss(self, minibatch: Minibatch, fraction: float) -> Loss:
        """Returns the loss of one minibatch, before `coef`, when `fraction` of the budget is spent.

        It is reported as `train/<name>_loss`, and `parts` as `train/<name>_<part>`.
        """
