"""Copies of a policy that act elsewhere: the same state, in memory that gives the same numbers to the last bit."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch

from quintain.policies.base import Policy

Snapshot = Mapping[str, torch.Tensor]
"""The policy's state that a block is to be filled with, by name."""

_LINE_BYTES = 64


def make_snapshot(policy: Policy) -> dict[str, torch.Tensor]:
    """Makes room for a copy of the policy's state."""
    return {name: torch.zeros_like(value) for name, value in policy.state_dict().items()}


@torch.no_grad()
def take_snapshot(policy: Policy, into: Snapshot) -> None:
    """Copies the policy's state; an empty snapshot stands for the policy itself, which needs no copy."""
    if into:
        for name, value in policy.state_dict().items():
            into[name].copy_(value)


@torch.no_grad()
def load_snapshot(policy: Policy, snapshot: Snapshot) -> None:
    """Gives a policy the state of a snapshot, in place; an empty one changes nothing."""
    if snapshot:
        for name, value in policy.state_dict().items():
            value.copy_(snapshot[name])


def copy_of(policy: Policy) -> Policy:
    """Returns a policy that acts as this one does to the last bit, and changes only when it is told to."""
    acting = copy.deepcopy(policy)
    align(acting, alignment_of(policy))
    return acting


def alignment_of(policy: Policy) -> dict[str, int]:
    """Returns where in a line of the processor's cache each parameter begins."""
    return {name: parameter.data_ptr() % _LINE_BYTES for name, parameter in policy.named_parameters()}


@torch.no_grad()
def align(policy: Policy, alignment: Mapping[str, int]) -> None:
    """Moves all parameters to one piece of memory, in which each begins where in a line it is told.

    A matrix product rounds differently when its factors begin elsewhere in a line, so a copy that is to act exactly as
    its original must be aligned as that is. Parameters that followed one another without a gap still do, which is how
    compiled kernels read them.
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
