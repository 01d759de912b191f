"""A policy for algorithms that learn from replay: it has no critic of its own, and explores as far as it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from quintain.policies.base import Policy

if TYPE_CHECKING:
    from quintain.settings.base import Schedule


class ExploringPolicy(Policy):
    """Acts uniformly at random while `acts_at_random` is set, and explores by `exploration`, which a schedule sets.

    Both are buffers, because they decide what is collected: they are saved and travel to actors with the weights, so
    that every version of the policy explores in the same way wherever it acts. Deterministic actions look at neither.
    """

    acts_at_random: torch.Tensor
    exploration: torch.Tensor
    has_values = False

    def __init__(self, schedule: Schedule | None = None) -> None:
        super().__init__()
        self.schedule = schedule
        # An algorithm that has learned nothing yet sets it.
        self.register_buffer("acts_at_random", torch.zeros((), dtype=torch.bool))
        if schedule is not None:
            self.register_buffer("exploration", torch.tensor(schedule.at(0.0)))

    def explore_at(self, fraction: float) -> None:
        if self.schedule is not None:
            self.exploration.fill_(self.schedule.at(fraction))

    @property
    def device(self) -> torch.device:
        # Asked for in every step: going through the modules for a parameter takes longer than drawing a minibatch.
        return self.acts_at_random.device

    def value_of(self, obs: Any, state: torch.Tensor | None = None, first: torch.Tensor | None = None) -> torch.Tensor:
        return torch.zeros(len(self.obs_rows(obs)), device=self.device)
