"""Converts values between an environment and a rollout, which stores discrete values flat and from zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.data.spec import BoxSpec, DiscreteSpec, LeafSpec, MultiDiscreteSpec

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from quintain.typing import Array


def env_shape(leaf: LeafSpec) -> tuple[int, ...]:
    """Returns the shape of one value of this leaf in the environment; a text is a scalar."""
    if not isinstance(leaf, MultiDiscreteSpec):
        return leaf.shape
    return () if leaf.characters else leaf.env_shape or leaf.shape


def from_env(leaf: LeafSpec, value: ArrayLike) -> ArrayLike:
    """Converts one value of the environment, or a batch of them, to the stored format of the leaf."""
    if isinstance(leaf, BoxSpec):
        return value
    if isinstance(leaf, DiscreteSpec):
        return np.asarray(value) - leaf.start if leaf.start else value
    if leaf.characters:
        return _codes(leaf, value)
    chosen = np.asarray(value)
    num_batch_axes = chosen.ndim - len(env_shape(leaf))
    row = chosen.reshape(*chosen.shape[:num_batch_axes], -1)
    return row - np.asarray(leaf.starts) if leaf.starts and row.shape[-1] == len(leaf.starts) else row


def to_env(leaf: LeafSpec, rows: Array) -> Array:
    """Converts a batch of stored actions [B, ...] to the environment's format; always a copy."""
    if isinstance(leaf, DiscreteSpec):
        return rows + leaf.start
    if isinstance(leaf, BoxSpec):
        return rows.copy()
    numbered = rows + (np.asarray(leaf.starts) if leaf.starts else 0)
    return numbered.reshape(len(rows), *env_shape(leaf))


def is_in_range(leaf: LeafSpec, stored: ArrayLike) -> bool:
    """Whether stored discrete values are in the leaf's range; continuous ones always are."""
    if isinstance(leaf, BoxSpec):
        return True
    chosen = np.asarray(stored)
    limit = np.asarray(leaf.n if isinstance(leaf, DiscreteSpec) else leaf.nvec)
    return bool(((chosen >= 0) & (chosen < limit)).all())


def _codes(leaf: MultiDiscreteSpec, value: ArrayLike) -> Array:
    texts = np.asarray(value)
    known = {character: i + 1 for i, character in enumerate(leaf.characters)}
    # A text that is too long stays too long: whoever stores it sees that its shape is not the declared one.
    length = max(len(leaf.nvec), *(len(text) for text in texts.reshape(-1).tolist()))
    codes = np.zeros((texts.size, length), dtype=np.int64)
    for row, text in zip(codes, texts.reshape(-1).tolist(), strict=True):
        row[: len(text)] = [known.get(character, 0) for character in text]
    return codes.reshape(*texts.shape, length)
