"""Finds bitwise differences between the data of two objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.core.state import KeepsState, Kept, save_generator
from quintain.typing import Stateful

if TYPE_CHECKING:
    from quintain.typing import Array, Values

Seen = dict[tuple[int, int], tuple[Kept, Kept]]
"""Compared pairs, by their ids; kept alive, because the id of a freed object is used again."""


def differences(left: Kept, right: Kept, path: str = "") -> Iterator[str]:
    """Yields the path of every difference, with both values.

    An object that collects its own state is compared by all its attributes, except those in its `not_state`; one with
    its own `state_dict` by that; any other by value, or by its attributes.

    >>> list(differences({"a": [1, 2.0]}, {"a": [1, 2.5]}))
    ['a[1]: 2.0 and 2.5']
    """
    return _differences(left, right, path, {})


def _differences(left: Kept, right: Kept, path: str, seen: Seen) -> Iterator[str]:
    if left is right or (id(left), id(right)) in seen:
        return
    if not isinstance(left, int | float | str):
        seen[id(left), id(right)] = (left, right)
    if type(left) is not type(right):
        yield f"{path}: a {type(left).__name__} and a {type(right).__name__}"
    elif isinstance(left, torch.Tensor | np.ndarray | np.generic):
        yield from _array_differences(np.asarray(_on_cpu(left)), np.asarray(_on_cpu(right)), path)
    elif isinstance(left, np.random.Generator):
        yield from _differences(save_generator(left), save_generator(right), path, seen)
    elif isinstance(left, Mapping):
        yield from _mapping_differences(left, right, path, seen)
    elif isinstance(left, list | tuple):
        if len(left) != len(right):
            yield f"{path}: {len(left)} and {len(right)} items"
        for i, (one, other) in enumerate(zip(left, right, strict=False)):
            yield from _differences(one, other, f"{path}[{i}]", seen)
    elif isinstance(left, FunctionType | MethodType | type):
        return
    elif isinstance(left, KeepsState) and type(left).state_dict is KeepsState.state_dict:
        yield from _mapping_differences(_attributes(left), _attributes(right), path, seen)
    elif isinstance(left, Stateful):
        yield from _differences(left.state_dict(), right.state_dict(), path, seen)
    elif _has_equality(left):
        # NaN is equal to itself here: both sides hold the same thing.
        if left != right and not (left != left and right != right):
            yield f"{path}: {left!r} and {right!r}"
    elif hasattr(left, "__dict__"):
        yield from _mapping_differences(vars(left), vars(right), path, seen)


def _has_equality(value: Kept) -> bool:
    return any("__eq__" in vars(base) for base in type(value).__mro__[:-1])


def _attributes(instance: KeepsState) -> dict[str, Kept]:
    return {name: value for name, value in vars(instance).items() if name not in instance.not_state}


def _mapping_differences(left: Mapping[str, Kept], right: Mapping[str, Kept], path: str, seen: Seen) -> Iterator[str]:
    for key in [*left, *(key for key in right if key not in left)]:
        below = f"{path}.{key}" if path else str(key)
        if key not in left or key not in right:
            yield f"{below}: only on one side"
        else:
            yield from _differences(left[key], right[key], below, seen)


def _array_differences(left: Array, right: Array, path: str) -> Iterator[str]:
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        yield f"{path}: {left.dtype}{list(left.shape)} and {right.dtype}{list(right.shape)}"
    elif left.tobytes() != right.tobytes():
        yield f"{path}: {left.ravel()[:4]} and {right.ravel()[:4]} (the first numbers)"


def _on_cpu(values: Values | np.generic) -> Array | np.generic:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
