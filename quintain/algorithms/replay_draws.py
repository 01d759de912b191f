"""Samples from the replay buffer and noise for a gradient step: a function of counters, no state."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quintain.core.rng import Rng
from quintain.policies.heads import NoiseSpec

if TYPE_CHECKING:
    from quintain.typing import Array

_MOST_UPDATES, _MOST_ROWS = 16, 1 << 15
"""Number of updates and rows drawn at once: making a generator costs more than the draws of a minibatch."""


class _Block(NamedTuple):
    """The draws of one gradient step in each of several updates in a row."""

    number: int
    places: Array
    """[updates, B], as fractions of the replay buffer's size at that time."""
    noise: tuple[Array, Array]
    """[updates, B, K] for the actions of now and of what follows: uniform numbers, and then standard normal ones."""


class ReplayDraws:
    """Draws minibatches of one size, with noise for the action of each transition and for the next one."""

    def __init__(self, rng: Rng, size: int, noise: tuple[NoiseSpec, NoiseSpec]) -> None:
        self.rng = rng
        self.size = size
        self.noise = noise
        self.num_updates = max(1, min(_MOST_UPDATES, _MOST_ROWS // size))
        self.blocks: dict[int, _Block] = {}

    def draw(self, update: int, step: int, num_remembered: int) -> tuple[Array, tuple[Array, Array]]:
        """Returns uniform random indices [B] into the replay buffer, and noise [B, K] for this action and the next."""
        number, row = divmod(update, self.num_updates)
        block = self.blocks.get(step)
        if block is None or block.number != number:
            block = self.blocks[step] = self._block(number, step)
        now, following = block.noise
        return (block.places[row] * num_remembered).astype(np.int64), (now[row], following[row])

    def _block(self, number: int, step: int) -> _Block:
        draw, updates, size = self.rng.generator("replay", number, step), self.num_updates, self.size
        specs = self.noise
        # One draw for both actions of each update: its order is that of every run with replay so far.
        normal = draw.standard_normal((updates, size * sum(spec.num_normal for spec in specs)), dtype="float32")
        places = draw.random((updates, size))
        uniform = draw.random((updates, size * sum(spec.num_uniform for spec in specs)), dtype="float32")
        parts = []
        for k, spec in enumerate(specs):
            columns = []
            for drawn, width, before in (
                (uniform, spec.num_uniform, k * specs[0].num_uniform),
                (normal, spec.num_normal, k * specs[0].num_normal),
            ):
                columns.append(drawn[:, size * before : size * (before + width)].reshape(updates, size, width))
            parts.append(columns[1] if not spec.num_uniform else np.concatenate(columns, axis=2))
        return _Block(number, places, (parts[0], parts[1]))
