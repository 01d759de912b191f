"""Blocks and snapshots in memory that two processes share: both make them in the same order, so both see the same.

Pages are the kernel's to give: room for rows that are never written costs nothing.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch

from quintain.data.rollout import Allocator, Rollout
from quintain.envs.base import Env
from quintain.placements.plan import ActingPlan
from quintain.policies.base import Policy

_ALIGNMENT = 64
_NUM_SIGNALS = 8
STOP, PULSE = range(2)


@dataclass(frozen=True)
class SharedBlocks:
    """What a learner and its collector both hold."""

    blocks: list[Rollout]
    snapshots: list[dict[str, torch.Tensor]]
    signals: torch.Tensor
    """STOP is not zero while the collector is to stop after its current step; PULSE changes while it does something."""


def measure(plan: ActingPlan, env: Env, policy: Policy) -> int:
    """Returns how many bytes of shared memory `lay_out` needs."""
    ruler = _Ruler()
    _make(ruler, plan, env, policy)
    return ruler.size


def lay_out(memory: mmap.mmap, plan: ActingPlan, env: Env, policy: Policy) -> SharedBlocks:
    """Makes blocks and snapshots in shared memory."""
    return _make(_Carver(memory), plan, env, policy)


def _make(new: Allocator, plan: ActingPlan, env: Env, policy: Policy) -> SharedBlocks:
    signals = new((_NUM_SIGNALS,), torch.int64)
    blocks = [plan.make_block(env, policy, new) for _ in range(plan.num_blocks)]
    state = policy.state_dict()
    snapshots = [{name: new(tuple(value.shape), value.dtype) for name, value in state.items()} for _ in blocks]
    return SharedBlocks(blocks, snapshots, signals)


class _Ruler:
    """Adds up what is asked for."""

    def __init__(self) -> None:
        self.size = 0

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.size += _padded(math.prod(shape) * dtype.itemsize)
        # Never written, so it takes up no memory.
        return torch.empty(shape, dtype=dtype)


class _Carver:
    """Gives away one piece of memory after the other."""

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
