"""The other learners of this run, if any: averages over ranks that cost nothing when there is one."""

from __future__ import annotations

from typing import Protocol

import torch


class World(Protocol):
    """Knows its rank among `size` learners and averages numbers with the others."""

    rank: int
    size: int

    def average(self, values: torch.Tensor) -> None:
        """Replaces `values` by their mean over all ranks, in place."""


class Alone:
    """The world of a single learner."""

    rank = 0
    size = 1

    def average(self, values: torch.Tensor) -> None:
        """Leaves `values` as they are: the mean over one rank."""
