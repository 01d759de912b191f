"""The names, shapes and dtypes of one step of one behaviour. No torch, so that settings can be checked against it.

A spec is a leaf (Box, Discrete, MultiDiscrete) or a Dict or Tuple of specs. A rollout stores each leaf as one field,
named by its path: `obs`, or `obs.camera.left`. Users see the spec's own structure: an array, a dict, a tuple.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from quintain.core.state import require_within

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from quintain.typing import Array, JsonObject, Tree

Bound = TypeVar("Bound")
MOST_WRITTEN_OUT = 64
"""Number of equal bounds up to which each of them is written to a file."""
_COLOR_CHANNELS = (1, 3, 4)
LARGEST_BOX = 1 << 25
"""Most values that a box in a file may have."""


@dataclass(frozen=True)
class BoxSpec:
    """A continuous space; bounds are arrays of its shape, infinite where there is none."""

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

    @property
    def is_image(self) -> bool:
        """Whether it has height, width and channels, or is a stack of such images."""
        return len(self.shape) in (3, 4) and sorted(self.shape[-3:])[1] >= 7 and (self.is_stack or len(self.shape) == 3)

    @property
    def is_stack(self) -> bool:
        """Whether it is frames of 1, 3 or 4 channels each: [K, height, width, C] or [K, C, height, width]."""
        return len(self.shape) == 4 and (self.shape[3] in _COLOR_CHANNELS or self.shape[1] in _COLOR_CHANNELS)

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
    """A discrete space with `n` options, numbered from `start` in the environment and from zero everywhere else."""

    n: int
    start: int = 0

    shape: tuple[int, ...] = ()
    dtype: str = "int64"

    def __str__(self) -> str:
        return f"Discrete({self.n})"


@dataclass(frozen=True)
class MultiDiscreteSpec:
    """Several discrete values, stored flat and from zero, whatever the environment's format."""

    nvec: tuple[int, ...]
    starts: tuple[int, ...] = ()
    """The environment's number of each value's first option; all zero if empty."""
    env_shape: tuple[int, ...] = ()
    """The shape in the environment; flat if empty."""
    characters: str = ""
    """For a text: its characters, numbered from 1. 0 is any other character, and padding."""
    dtype: str = "int64"

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    def __str__(self) -> str:
        return f"MultiDiscrete{list(self.nvec)}"


@dataclass(frozen=True)
class DictSpec:
    """Specs by name, in a fixed order."""

    entries: tuple[tuple[str, Spec], ...]

    def __str__(self) -> str:
        return f"Dict({', '.join(f'{name}: {spec}' for name, spec in self.entries)})"


@dataclass(frozen=True)
class TupleSpec:
    """Specs by position."""

    entries: tuple[Spec, ...]

    def __str__(self) -> str:
        return f"Tuple({', '.join(map(str, self.entries))})"


LeafSpec: TypeAlias = BoxSpec | DiscreteSpec | MultiDiscreteSpec
Spec: TypeAlias = LeafSpec | DictSpec | TupleSpec


@dataclass(frozen=True)
class BehaviorSpec:
    """The observation and action specs of a behaviour."""

    obs: Spec
    action: Spec
    mask_size: int = 0
    """Number of options in a mask: all of the action's, in the order of its leaves; 0 without a mask."""

    def __str__(self) -> str:
        return f"obs {self.obs}, action {self.action}" + (" with masks" if self.mask_size else "")

    def to_dict(self) -> JsonObject:
        """Serializes the spec, for manifests and for comparing a checkpoint with an environment."""
        return {"obs": _to_dict(self.obs), "action": _to_dict(self.action), "mask_size": self.mask_size}


def leaves(spec: Spec, name: str) -> dict[str, LeafSpec]:
    """Returns the spec's leaves by field name.

    Example:
        >>> list(leaves(DictSpec((("a", box(2)), ("b", discrete(3)))), "obs"))
        ['obs.a', 'obs.b']
    """
    if isinstance(spec, DictSpec | TupleSpec):
        return {path: leaf for key, below in _entries(spec) for path, leaf in leaves(below, f"{name}.{key}").items()}
    return {name: spec}


def flatten(spec: Spec, value: Tree, name: str) -> dict[str, Tree]:
    """Returns the values at the spec's leaves by field name; `value` has the spec's structure."""
    if isinstance(spec, DictSpec):
        parts = [flatten(below, value[key], f"{name}.{key}") for key, below in spec.entries]
    elif isinstance(spec, TupleSpec):
        parts = [flatten(below, value[i], f"{name}.{i}") for i, below in enumerate(spec.entries)]
    else:
        return {name: value}
    return {path: leaf for part in parts for path, leaf in part.items()}


def build(spec: Spec, values: Mapping[str, Tree], name: str) -> Tree:
    """Returns values given by field name in the spec's structure."""
    if isinstance(spec, DictSpec):
        return {key: build(below, values, f"{name}.{key}") for key, below in spec.entries}
    if isinstance(spec, TupleSpec):
        return tuple(build(below, values, f"{name}.{i}") for i, below in enumerate(spec.entries))
    return values[name]


def discrete_sizes(spec: Spec) -> tuple[int, ...]:
    """Returns the number of options of each discrete action, in the order of the leaves.

    Example:
        >>> discrete_sizes(TupleSpec((discrete(4), box(2), multi_discrete(2, 3))))
        (4, 2, 3)
    """
    sizes: tuple[int, ...] = ()
    for leaf in leaves(spec, "action").values():
        if isinstance(leaf, DiscreteSpec):
            sizes += (leaf.n,)
        elif isinstance(leaf, MultiDiscreteSpec):
            sizes += leaf.nvec
    return sizes


def require_choices(leaf: LeafSpec, where: str, values: ArrayLike) -> None:
    """Refuses discrete values of a saved state that are out of range: kernels and tables are indexed with them."""
    if isinstance(leaf, DiscreteSpec):
        require_within(where, values, 0, leaf.n - 1)
    elif isinstance(leaf, MultiDiscreteSpec):
        for column, size in enumerate(leaf.nvec):
            require_within(f"{where}[{column}]", np.asarray(values)[..., column], 0, size - 1)


def _entries(spec: DictSpec | TupleSpec) -> list[tuple[str, Spec]]:
    return list(spec.entries) if isinstance(spec, DictSpec) else [(str(i), s) for i, s in enumerate(spec.entries)]


def _to_dict(spec: Spec) -> JsonObject:
    if isinstance(spec, DiscreteSpec):
        return {"type": "discrete", "n": spec.n, "start": spec.start}
    if isinstance(spec, MultiDiscreteSpec):
        return {
            "type": "multi_discrete",
            "nvec": list(spec.nvec),
            "starts": list(spec.starts),
            "env_shape": list(spec.env_shape),
            "characters": spec.characters,
        }
    if isinstance(spec, DictSpec):
        return {"type": "dict", "entries": {name: _to_dict(below) for name, below in spec.entries}}
    if isinstance(spec, TupleSpec):
        return {"type": "tuple", "entries": [_to_dict(below) for below in spec.entries]}
    # JSON has no infinity: a missing bound is null. The pixels of an image have equal bounds, written once.
    low, high = ([float(x) if np.isfinite(x) else None for x in in_short(bound)] for bound in (spec.low, spec.high))
    return {"type": "box", "shape": list(spec.shape), "dtype": spec.dtype, "low": low, "high": high}


def in_short(bound: Sequence[Bound]) -> Sequence[Bound]:
    """Returns one bound for many equal ones.

    >>> in_short((0.0,) * 84 * 84), in_short((0.0, 0.0))
    ((0.0,), (0.0, 0.0))
    """
    is_long = len(bound) > MOST_WRITTEN_OUT
    return bound[:1] if is_long and all(each == bound[0] for each in bound) else bound


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


def multi_discrete(*nvec: int) -> MultiDiscreteSpec:
    return MultiDiscreteSpec(nvec=nvec)


def spec_from_dict(words: JsonObject) -> BehaviorSpec:
    """Deserializes the result of `BehaviorSpec.to_dict`.

    Example:
        >>> spec = BehaviorSpec(obs=box(2, high=1.0), action=discrete(3))
        >>> spec_from_dict(spec.to_dict()) == spec
        True
    """
    action, mask_size = _from_dict(words["action"]), int(words["mask_size"])
    if mask_size not in (0, sum(discrete_sizes(action))):
        raise ValueError(f"a mask of {mask_size} does not fit the discrete values of {action}")
    return BehaviorSpec(_from_dict(words["obs"]), action, mask_size)


def _from_dict(words: JsonObject) -> Spec:
    kind = words["type"]
    if kind == "discrete":
        return DiscreteSpec(n=int(words["n"]), start=int(words["start"]))
    if kind == "multi_discrete":
        nvec, starts, env_shape = (tuple(int(n) for n in words[key]) for key in ("nvec", "starts", "env_shape"))
        return MultiDiscreteSpec(nvec, starts, env_shape, str(words["characters"]))
    if kind == "dict":
        return DictSpec(tuple((str(name), _from_dict(below)) for name, below in words["entries"].items()))
    if kind == "tuple":
        return TupleSpec(tuple(_from_dict(below) for below in words["entries"]))
    shape = tuple(int(n) for n in words["shape"])
    if kind != "box" or words["dtype"] not in ("float32", "uint8") or min(shape, default=1) < 1:
        raise ValueError(f"no space is a {kind} of {words['dtype']} {list(shape)}")
    low = tuple(-np.inf if x is None else float(x) for x in words["low"])
    high = tuple(np.inf if x is None else float(x) for x in words["high"])
    size = math.prod(shape)
    if size > LARGEST_BOX:
        raise ValueError(f"a box of {list(shape)} has more than {LARGEST_BOX} values")
    low, high = (bound * size if len(bound) == 1 else bound for bound in (low, high))
    return BoxSpec(shape=shape, dtype=str(words["dtype"]), low=low, high=high)
