"""Converts the Gymnasium spaces of one agent to observations and actions like ML-Agents'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from quintain.envs.agents.specs import ActionSpec, ObservationSpec
from quintain.errors import SpecMismatch

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import Returned, Space
    from quintain.typing import Action, Array, Observation

MASK = "action_mask"
LeafPath: TypeAlias = tuple[str | int, ...]
"""Keys and indices that lead from an observation to a leaf."""


class Observations:
    """Converts observations to arrays: floats unchanged, bytes scaled to [0, 1], discrete values one-hot."""

    def __init__(self, agent: str, space: Space) -> None:
        self.space = space
        below = getattr(space, "spaces", None)
        self.has_mask = isinstance(below, Mapping) and MASK in below
        if self.has_mask and isinstance(below, Mapping):
            inner = {name: each for name, each in below.items() if name != MASK}
            leaves = [leaf for name, each in inner.items() for leaf in _leaves(each, (name,))]
        else:
            leaves = _leaves(space, ())
        self.leaves = leaves
        for path, leaf in leaves:
            if _kind(leaf) not in ("Box", "Discrete", "MultiDiscrete", "MultiBinary"):
                where = ".".join(map(str, path)) or "the observation"
                raise SpecMismatch(f"agent {agent!r}: {where} is a {_kind(leaf)}, for which there is no network")
        self.specs = [ObservationSpec(_shape(leaf), name=".".join(map(str, path))) for path, leaf in leaves]

    def read(self, seen: Observation) -> list[Array]:
        """Returns one array per leaf of the space."""
        return [_numbers(leaf, _at(seen, path)) for path, leaf in self.leaves]

    def mask_in(self, seen: Observation, info: Returned) -> Returned:
        """Returns the action mask, from the observation or the info dict."""
        if self.has_mask:
            return seen[MASK]
        return info.get(MASK) if isinstance(info, Mapping) else None


class Actions:
    """Converts discrete actions, and continuous ones in [-1, 1], to a game's actions."""

    def __init__(self, agent: str, space: Space) -> None:
        self.space = space
        kind = _kind(space)
        if kind == "Discrete":
            self.spec = ActionSpec.create_discrete((int(space.n),))
        elif kind == "MultiDiscrete":
            self.spec = ActionSpec.create_discrete([int(n) for n in np.asarray(space.nvec).reshape(-1)])
        elif kind == "MultiBinary":
            self.spec = ActionSpec.create_discrete([2] * int(np.prod(space.shape)))
        elif kind == "Box":
            self.spec = ActionSpec.create_continuous(int(np.prod(space.shape)))
        else:
            raise SpecMismatch(
                f"agent {agent!r} acts in a {kind}; expected Discrete, MultiDiscrete, MultiBinary or Box"
            )

    def native(self, numbers: Array, choices: Array) -> Action:
        """Returns one action of the game."""
        space = self.space
        if _kind(space) == "Discrete":
            return int(choices[0]) + int(space.start)
        if _kind(space) == "Box":
            low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
            given = numbers.reshape(space.shape).astype(np.float64)
            is_bounded = np.isfinite(low) & np.isfinite(high)
            scaled = np.where(is_bounded, low, 0.0) + 0.5 * (given + 1.0) * np.where(is_bounded, high - low, 0.0)
            return np.clip(np.where(is_bounded, scaled, given), low, high).astype(space.dtype)
        start = np.asarray(getattr(space, "start", 0))
        return (choices.reshape(space.shape) + start).astype(space.dtype)

    def nothing(self) -> Action:
        """Returns the default action of an agent that got none: zeros."""
        return self.native(np.zeros(self.spec.continuous_size), np.zeros(self.spec.discrete_size, np.int64))

    def forbidden(self, allowed: Returned) -> Array | None:
        """Returns the forbidden options over all branches; None if all are allowed."""
        if allowed is None or not self.spec.discrete_branches:
            return None
        parts = allowed if isinstance(allowed, tuple) else (allowed,)
        return ~np.concatenate([np.asarray(part).reshape(-1) for part in parts]).astype(np.bool_)


def _kind(space: Space) -> str:
    return type(space).__name__


def _leaves(space: Space, path: LeafPath) -> list[tuple[LeafPath, Space]]:
    below = getattr(space, "spaces", None)
    if below is None:
        return [(path, space)]
    items = below.items() if isinstance(below, Mapping) else enumerate(below)
    return [leaf for key, each in items for leaf in _leaves(each, (*path, key))]


def _at(seen: Observation, path: LeafPath) -> Observation:
    for step in path:
        seen = seen[step]
    return seen


def _shape(leaf: Space) -> tuple[int, ...]:
    if _kind(leaf) == "Discrete":
        return (int(leaf.n),)
    if _kind(leaf) == "MultiDiscrete":
        return (int(np.sum(leaf.nvec)),)
    return tuple(int(n) for n in leaf.shape) or (1,)


def _numbers(leaf: Space, value: Observation) -> Array:
    if _kind(leaf) == "Discrete":
        return _one_hot(int(leaf.n), int(value) - int(leaf.start))
    if _kind(leaf) == "MultiDiscrete":
        chosen = np.asarray(value).reshape(-1) - np.asarray(leaf.start).reshape(-1)
        sizes = np.asarray(leaf.nvec).reshape(-1)
        return np.concatenate([_one_hot(int(n), int(i)) for n, i in zip(sizes, chosen, strict=True)])
    array: Array = np.asarray(value, np.float32).reshape(_shape(leaf))
    return array * np.float32(1 / 255) if np.dtype(leaf.dtype) == np.uint8 else array


def _one_hot(size: int, place: int) -> Array:
    hot = np.zeros(size, np.float32)
    hot[place] = 1.0
    return hot
