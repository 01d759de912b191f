"""Copies of a policy for actors: bitwise equal outputs, because state and memory alignment are equal.

A block of lanes is filled with a snapshot of its own. Collectors of fragments take the newest weights between two acts,
in any thread or process. A publication is then one record: weights, version and session. It is written to a slot that
is not the newest, and becomes the newest by one number. A reader that was overtaken while it copied sees that by the
number, and copies again: it never acts with half of a record, or with the version of another.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from quintain.data.rollout import Allocator
from quintain.policies.base import Policy

if TYPE_CHECKING:
    from quintain.typing import Array

Snapshot = Mapping[str, torch.Tensor]
"""The policy's state for a block, by name."""

_LINE_BYTES = 64


def make_snapshot(policy: Policy, device: str | None = None) -> dict[str, torch.Tensor]:
    """Allocates a copy of the policy's state, on the policy's device or another."""
    return {name: torch.zeros_like(value, device=device) for name, value in policy.state_dict().items()}


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


class Label(NamedTuple):
    """Says which weights acted."""

    version: int
    session: int
    """The session of the learner that published them; see `RolloutBuffer.session`."""


class PublishedWeights:
    """Two slots, each with one publication; one learner writes, any number of readers copy."""

    def __init__(self, policy: Policy, allocate: Allocator, *, has_copies: bool = True) -> None:
        """Allocates the slots; without copies the learner's own policy acts, and labels alone are published."""
        state = policy.state_dict() if has_copies else {}
        self.slots = [
            {name: allocate(tuple(value.shape), value.dtype) for name, value in state.items()} for _ in range(2)
        ]
        self.labels = allocate((2, 2), torch.int64).numpy()
        """Version and session of each slot."""
        self.newest = allocate((1,), torch.int64).numpy()
        """The number of publications; the newest is in slot `newest % 2`."""

    def publish(self, label: Label, policy: Policy) -> None:
        """Publishes the policy's weights as one record."""
        number = int(self.newest[0]) + 1
        self.labels[number % 2] = label
        take_snapshot(policy, self.slots[number % 2])
        self.newest[0] = number

    def publish_arrays(self, label: Sequence[int], weights: Mapping[str, Array]) -> None:
        """Publishes weights that stay where they are, such as in the object store; those before may go."""
        number = int(self.newest[0]) + 1
        with warnings.catch_warnings():
            # They are read only, and so they are used.
            warnings.simplefilter("ignore", UserWarning)
            slot = {name: torch.from_numpy(weights[name]) for name in self.slots[0]}
        self.labels[number % 2] = label
        self.slots[number % 2] = slot
        self.newest[0] = number
        self.slots[(number + 1) % 2] = slot


class WeightReader:
    """A collector's view of published weights."""

    def __init__(self, published: PublishedWeights, policy: Policy) -> None:
        self.published = published
        self.policy = policy
        self.number = 0
        self.label = Label(0, 0)

    def take(self) -> Label:
        """Copies the newest weights to the policy, if it does not have them; returns their label."""
        published = self.published
        # A slot is written again only after the other one became the newest, so that what was copied is whole if its
        # number is still the newest afterwards.
        while (number := int(published.newest[0])) != self.number:
            version, session = published.labels[number % 2].tolist()
            load_snapshot(self.policy, published.slots[number % 2])
            self.number, self.label = number, Label(version, session)
        return self.label
