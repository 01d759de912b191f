"""The names, shapes and dtypes of one step of one behaviour. No torch, so that settings can be checked against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from quintain.typing import Array


@dataclass(frozen=True)
class BoxSpec:
    """Numbers of one shape; bounds are arrays of that shape, infinite where there is none."""

    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_bounded(self) -> bool:
        return bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def bounds(self) -> tuple[Array, Array]:
        """Returns low and high in this shape."""
        return (
            np.asarray(self.low, dtype=np.float32).reshape(self.shape),
            np.asarray(self.high, dtype=np.float32).reshape(self.shape),
        )

    def __str__(self) -> str:
        return f"Box{self.shape}".replace(",)", ")")


@dataclass(frozen=True)
class DiscreteSpec:
    """One of `n` choices, numbered from `start` in the environment and from zero everywhere else."""

    n: int
    start: int = 0

    def __str__(self) -> str:
        return f"Discrete({self.n})"


@dataclass(frozen=True)
class BehaviorSpec:
    """What a policy of this behaviour sees and chooses at each step."""

    obs: BoxSpec
    action: BoxSpec | DiscreteSpec

    def __str__(self) -> str:
        return f"obs {self.obs}, action {self.action}"

    def to_dict(self) -> dict[str, object]:
        """Describes the spec as JSON, for manifests and for comparing a checkpoint with an environment."""
        return {"obs": _to_dict(self.obs), "action": _to_dict(self.action)}


def _to_dict(spec: BoxSpec | DiscreteSpec) -> dict[str, object]:
    if isinstance(spec, DiscreteSpec):
        return {"type": "discrete", "n": spec.n, "start": spec.start}
    # JSON has no infinity: a missing bound is null.
    low, high = ([float(x) if np.isfinite(x) else None for x in bound] for bound in (spec.low, spec.high))
    return {"type": "box", "shape": list(spec.shape), "dtype": spec.dtype, "low": low, "high": high}


def box(*shape: int, low: float = -np.inf, high: float = np.inf, dtype: str = "float32") -> BoxSpec:
    """Makes a BoxSpec with the same bounds everywhere.

    Example:
        >>> print(box(4))
        Box(4)
    """
    size = int(np.prod(shape, dtype=np.int64))
    return BoxSpec(shape=shape, dtype=dtype, low=(float(low),) * size, high=(float(high),) * size)


def discrete(n: int, start: int = 0) -> DiscreteSpec:
    return DiscreteSpec(n=n, start=start)
