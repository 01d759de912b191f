"""Which remembered transitions a gradient step learns from, and with what noise: a function of counters, no state."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quintain.core.rng import Rng

if TYPE_CHECKING:
    from quintain.typing import Array

_MOST_UPDATES, _MOST_ROWS = 16, 1 << 15
"""How much is drawn at once: making a generator costs more than a minibatch's numbers."""


class _Block(NamedTuple):
    """What one gradient step of each of several updates in a row draws."""

    number: int
    places: Array
    """[updates, B], parts of the way through the memory, whatever its size will be."""
    noise: Array
    """[updates, 2, B, C], standard normal, for the actions of now and of what follows."""


class ReplayDraws:
    """Draws minibatches of one size."""

    def __init__(self, rng: Rng, size: int, num_numbers: int) -> None:
        self.rng = rng
        self.size = size
        self.num_numbers = num_numbers
        self.num_updates = max(1, min(_MOST_UPDATES, _MOST_ROWS // size))
        self.blocks: dict[int, _Block] = {}

    def draw(self, update: int, step: int, num_remembered: int) -> tuple[Array, Array]:
        """Returns places [B] among what is remembered, all equally likely, and noise [2, B, C]."""
        number, row = divmod(update, self.num_updates)
        block = self.blocks.get(step)
        if block is None or block.number != number:
            block = self.blocks[step] = self._block(number, step)
        return (block.places[row] * num_remembered).astype(np.int64), block.noise[row]

    def _block(self, number: int, step: int) -> _Block:
        draw, updates, size = self.rng.generator("replay", number, step), self.num_updates, self.size
        noise = draw.standard_normal((updates, 2, size, self.num_numbers), dtype="float32")
        return _Block(number, draw.random((updates, size)), noise)
