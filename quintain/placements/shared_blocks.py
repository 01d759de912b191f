"""Blocks and snapshots in shared memory: both processes lay them out in the same order.

Blocks of agents that come and go grow, so they are not shared: they travel whole with commands and answers.

The kernel allocates pages on first write: rows that are never written take no memory.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from quintain.data.rollout import Allocator
from quintain.placements.plan import ActingPlan, Blocks
from quintain.placements.snapshots import PublishedWeights
from quintain.policies.base import Policy

_ALIGNMENT = 64
_NUM_SIGNALS = 8
STOP, PULSE = range(2)


@dataclass(frozen=True)
class SharedBlocks:
    """Blocks, weights and signals that a learner and its collector share."""

    blocks: Blocks
    snapshots: dict[str, list[dict[str, torch.Tensor]]]
    published: dict[str, PublishedWeights]
    """The newest weights by behaviour, where collectors take them between two acts."""
    signals: torch.Tensor
    """A row for each collector. STOP is nonzero while it is asked to stop after its current step; PULSE changes while
    it makes progress."""


def measure(plan: ActingPlan, num_lanes: int, policies: Mapping[str, Policy]) -> int:
    """Returns the bytes of shared memory that `lay_out` needs."""
    ruler = _Ruler()
    _make(ruler, plan, num_lanes, policies)
    return ruler.size


def lay_out(memory: mmap.mmap, plan: ActingPlan, num_lanes: int, policies: Mapping[str, Policy]) -> SharedBlocks:
    """Allocates blocks and snapshots in shared memory."""
    return _make(_Carver(memory), plan, num_lanes, policies)


def allocate_here(plan: ActingPlan, num_lanes: int, policies: Mapping[str, Policy]) -> SharedBlocks:
    """Allocates the same in this process alone; its contents are sent."""
    return _make(lambda shape, dtype: torch.zeros(shape, dtype=dtype), plan, num_lanes, policies)


def _make(new: Allocator, plan: ActingPlan, num_lanes: int, policies: Mapping[str, Policy]) -> SharedBlocks:
    signals = new((plan.num_collectors, _NUM_SIGNALS), torch.int64)
    blocks = plan.make_blocks(num_lanes, policies, None if plan.has_agents else new)
    snapshots = {
        behavior: [
            {} if plan.takes_newest else {key: new(tuple(x.shape), x.dtype) for key, x in policy.state_dict().items()}
            for _ in blocks[behavior]
        ]
        for behavior, policy in policies.items()
    }
    published = {name: PublishedWeights(policy, new) for name, policy in policies.items() if plan.takes_newest}
    return SharedBlocks(blocks, snapshots, published, signals)


class _Ruler:
    """Adds up the sizes of all allocations."""

    def __init__(self) -> None:
        self.size = 0

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.size += _padded(math.prod(shape) * dtype.itemsize)
        # Never written, so it takes up no memory.
        return torch.empty(shape, dtype=dtype)


class _Carver:
    """Allocates consecutive pieces of one memory."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.offset = 0

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = math.prod(shape)
        if count == 0:
            return torch.zeros(shape, dtype=dtype)
        piece = torch.frombuffer(self.memory, dtype=dtype, count=count, offset=self.offset)
        self.offset += _padded(count * dtype.itemsize)
        return piece.view(shape)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
