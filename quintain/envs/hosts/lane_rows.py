"""The data that lanes and the learner exchange, in one memory of a fixed layout.

The layout follows from the spec and the number of lanes alone, so that two processes agree on it without communication.
The learner writes actions, episodes and attempts; the host of a lane writes the rest of its row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, build, leaves

if TYPE_CHECKING:
    from mmap import mmap

    from quintain.typing import Array

_ALIGNMENT = 64
IDLE, STEPPING, RESETTING, CREATING = range(4)
"""The current call in the lowest two bits of a lane's mark; the other bits count calls."""


class LaneRows:
    """One row per lane of all inputs and results of a step."""

    def __init__(self, spec: BehaviorSpec, num_lanes: int, memory: mmap | None = None, *, num_metrics: int = 0) -> None:
        buffer = np.zeros(num_bytes(spec, num_lanes, num_metrics), np.uint8) if memory is None else memory
        arrays: dict[str, Array] = {}
        offset = 0
        for name, shape, dtype in _layout(spec, num_lanes, num_metrics):
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(buffer, dtype, count, offset).reshape(shape)
            offset += _padded(arrays[name].nbytes)
        self.obs = {name: arrays[name] for name in leaves(spec.obs, f.OBS)}
        self.final_obs = {name: arrays[f"final {name}"] for name in self.obs}
        self.action = {name: arrays[name] for name in leaves(spec.action, f.ACTION)}
        self.mask: Array | None = arrays.get(f.ACTION_MASK)
        self.reward = arrays[f.REWARD]
        self.terminated = arrays[f.TERMINATED]
        self.truncated = arrays[f.TRUNCATED]
        self.continues = arrays["continues"]
        """Whether the next episode is the same game, which went on, at the end of one."""
        self.metrics = arrays["metrics"]
        """Numbers from info at the end of an episode, [N, metrics]; NaN where there is none."""
        self.episode = arrays["episode"]
        self.attempt = arrays["attempt"]
        self.marks = arrays["marks"]
        # Built once: the same nested structure of the same arrays is returned at every step.
        self.obs_view = build(spec.obs, self.obs, f.OBS)
        self.final_view = build(spec.obs, self.final_obs, f.OBS)


def num_bytes(spec: BehaviorSpec, num_lanes: int, num_metrics: int = 0) -> int:
    """Returns the size of the rows."""
    return sum(
        _padded(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)
        for _, shape, dtype in _layout(spec, num_lanes, num_metrics)
    )


def _layout(spec: BehaviorSpec, num_lanes: int, num_metrics: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    for name, leaf in leaves(spec.obs, f.OBS).items():
        yield name, (num_lanes, *leaf.shape), leaf.dtype
        yield f"final {name}", (num_lanes, *leaf.shape), leaf.dtype
    for name, leaf in leaves(spec.action, f.ACTION).items():
        yield name, (num_lanes, *leaf.shape), leaf.dtype
    if spec.mask_size:
        yield f.ACTION_MASK, (num_lanes, spec.mask_size), "bool"
    yield f.REWARD, (num_lanes,), "float32"
    for name in (f.TERMINATED, f.TRUNCATED, "continues"):
        yield name, (num_lanes,), "bool"
    for name in ("episode", "attempt", "marks"):
        yield name, (num_lanes,), "int64"
    yield "metrics", (num_lanes, num_metrics), "float64"


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
