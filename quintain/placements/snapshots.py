"""Copies of a policy for actors: bitwise equal outputs, because state and memory alignment are equal."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch

from quintain.policies.base import Policy

Snapshot = Mapping[str, torch.Tensor]
"""The policy's state for a block, by name."""

_LINE_BYTES = 64


def make_snapshot(policy: Policy) -> dict[str, torch.Tensor]:
    """Allocates a copy of the policy's state."""
    return {name: torch.zeros_like(value) for name, value in policy.state_dict().items()}


@torch.no_grad()
def take_snapshot(policy: Policy, into: Snapshot) -> None:
    """Copies the policy's state; an empty snapshot stands for the policy itself and is left empty."""
    if into:
        for name, value in policy.state_dict().items():
            into[name].copy_(value)


@torch.no_grad()
def load_snapshot(policy: Policy, snapshot: Snapshot) -> None:
    """Loads a snapshot into a policy, in place; an empty one changes nothing."""
    if snapshot:
        for name, value in policy.state_dict().items():
            value.copy_(snapshot[name])


def copy_of(policy: Policy) -> Policy:
    """Returns an independent copy of a policy whose outputs are bitwise equal."""
    acting = copy.deepcopy(policy)
    align(acting, alignment_of(policy))
    return acting


def alignment_of(policy: Policy) -> dict[str, int]:
    """Returns the offset of each parameter within a cache line."""
    return {name: parameter.data_ptr() % _LINE_BYTES for name, parameter in policy.named_parameters()}


@torch.no_grad()
def align(policy: Policy, alignment: Mapping[str, int]) -> None:
    """Moves all parameters to one allocation, each at the given offset within a cache line.

    A matrix product rounds differently when its factors begin elsewhere in a cache line, so a copy with bitwise equal
    outputs must be aligned like its original. Parameters that were contiguous stay contiguous, as compiled kernels
    expect.
    """
    if policy.device.type != "cpu":
        return
    sizes = {name: parameter.numel() * parameter.element_size() for name, parameter in policy.named_parameters()}
    room = torch.zeros(sum(sizes.values()) + (len(sizes) + 1) * _LINE_BYTES, dtype=torch.uint8)
    end = 0
    for name, parameter in policy.named_parameters():
        start = end + (alignment[name] - room.data_ptr() - end) % _LINE_BYTES
        end = start + sizes[name]
        moved = room[start:end].view(parameter.dtype).view(parameter.shape)
        moved.copy_(parameter)
        parameter.data = moved
