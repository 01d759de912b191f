"""Randomness as a pure function of (seed, stream, counters): there is no generator state to save.

`Rng.generator` returns a numpy generator for one named purpose and counter (the permutation of update 7, epoch 2).
`Rng.fill_uniform` and `fill_normal` draw independently for each lane and step, regardless of the other lanes and of the
process, by the counter-based generator Philox4x32-10 (Salmon et al., SC 2011).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from quintain.typing import Array

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_NUMBERS_AT_ONCE = 2**14
"""Batch size of draws: intermediate results stay in the processor's cache, and need little memory."""


def philox4x32(counter: tuple[Array, Array, Array, Array], key: int) -> tuple[Array, Array, Array, Array]:
    """Converts four 32-bit counter words (held in uint64 arrays) to four random 32-bit words, ten rounds."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> _32) ^ c1 ^ np.uint64(k0),
            product1 & _LOW,
            (product0 >> _32) ^ c3 ^ np.uint64(k1),
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


@dataclass(frozen=True)
class Rng:
    """Random streams by name; children are streams of streams.

    Example:
        >>> Rng(7).seed_for("env", 0, 3) == Rng(7).seed_for("env", 0, 3) != Rng(8).seed_for("env", 0, 3)
        True
    """

    seed: int
    path: str = ""

    def child(self, name: str) -> Rng:
        """Returns the streams below `name`, independent of any other child's."""
        return Rng(self.seed, f"{self.path}{name}/")

    def key(self, stream: str, *counters: int) -> int:
        """Returns 64 bits that depend on the seed, the stream's name and the counters only."""
        text = f"{self.seed}:{self.path}{stream}:{','.join(map(str, counters))}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")

    def seed_for(self, stream: str, *counters: int) -> int:
        """Returns a seed that all libraries accept (31 bits)."""
        return self.key(stream, *counters) & 0x7FFFFFFF

    def seeds_for(self, stream: str, counters: Sequence[tuple[int, ...]]) -> list[int]:
        """Returns `seed_for` of each of these rows of counters, in a third of the time.

        Example:
            >>> Rng(7).seeds_for("env", [(0, 3)]) == [Rng(7).seed_for("env", 0, 3)]
            True
        """
        prefix = f"{self.seed}:{self.path}{stream}:".replace("%", "%%")
        text = (prefix + ",".join(["%d"] * len(counters[0] if counters else ()))).encode()
        digests = [hashlib.sha256(text % each).digest() for each in counters]
        return [int.from_bytes(digest[:4], "little") & 0x7FFFFFFF for digest in digests]

    def generator(self, stream: str, *counters: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self.key(stream, *counters)))

    def torch_generator(self, stream: str, *counters: int) -> torch.Generator:
        import torch

        return torch.Generator().manual_seed(self.key(stream, *counters) & 0x7FFFFFFFFFFFFFFF)

    def fill_uniform(self, out: Array, stream: str, first_step: int, first_lane: int = 0) -> None:
        """Fills `out [steps, lanes, size]` with uniforms in [0, 1), each a function of its lane and step."""
        for part, step in _parts(out, first_step):
            words = self._words(part.shape, stream, step, first_lane)
            # 24 bits: the largest set of equally spaced numbers below one that float32 holds exactly.
            part[...] = (words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)

    def uniforms_at(self, stream: str, steps: Array, lanes: Array, size: int) -> Array:
        """Returns uniforms in [0, 1), [n, size]: those that `fill_uniform` writes at these n pairs of step and lane."""
        grid = (len(steps), (size + 3) // 4)
        step, lane = steps.astype(np.uint64)[:, None], lanes.astype(np.uint64)[:, None]
        parts = (step & _LOW, step >> _32, lane, np.arange(grid[1], dtype=np.uint64))
        c0, c1, c2, c3 = (np.ascontiguousarray(np.broadcast_to(word, grid)) for word in parts)
        words = np.stack(philox4x32((c0, c1, c2, c3), self.key(stream)), axis=-1).reshape(len(steps), -1)[:, :size]
        drawn: Array = (words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
        return drawn

    def fill_normal(self, out: Array, stream: str, first_step: int, first_lane: int = 0) -> None:
        """Fills `out [steps, lanes, size]` with standard normals (Box-Muller, computed in float64)."""
        numbers = out.shape[2]
        pairs = (numbers + 1) // 2
        for part, step in _parts(out, first_step):
            words = self._words((*part.shape[:2], 2 * pairs), stream, step, first_lane)
            uniform = (words.astype(np.float64) + 0.5) * 2.0**-32
            radius, angle = np.sqrt(-2.0 * np.log(uniform[..., :pairs])), 2.0 * np.pi * uniform[..., pairs:]
            normal = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)), axis=-1)
            part[...] = normal[..., :numbers]

    def _words(self, shape: tuple[int, ...], stream: str, first_step: int, first_lane: int) -> Array:
        steps, lanes, numbers = shape
        blocks = (numbers + 3) // 4
        grid = (steps, lanes, blocks)
        step = np.arange(first_step, first_step + steps, dtype=np.uint64)[:, None, None]
        lane = np.arange(first_lane, first_lane + lanes, dtype=np.uint64)[None, :, None]
        block = np.arange(blocks, dtype=np.uint64)[None, None, :]
        counter: tuple[Array, ...] = tuple(
            np.ascontiguousarray(np.broadcast_to(word, grid)) for word in (step & _LOW, step >> _32, lane, block)
        )
        words = philox4x32((counter[0], counter[1], counter[2], counter[3]), self.key(stream))
        return np.stack(words, axis=-1).reshape(steps, lanes, blocks * 4)[..., :numbers]


def _parts(out: Array, first_step: int) -> Iterator[tuple[Array, int]]:
    """Yields batches of steps of a block, each with the index of its first step."""
    steps, lanes, numbers = out.shape
    size = max(1, _NUMBERS_AT_ONCE // max(1, lanes * numbers))
    for start in range(0, steps, size):
        yield out[start : start + size], first_step + start
