"""A nested dictionary of numpy arrays of strings and numbers that share a batch shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

if TYPE_CHECKING:
    from quintain.typing import Array

Key: TypeAlias = "str | tuple[str, ...]"
Index: TypeAlias = "int | slice | Array | list[int] | tuple[int | slice | Array, ...]"
Values: TypeAlias = "Mapping[str, Array | Values | NestedArrayDict]"


class NestedArrayDict:
    """Arrays by nested keys; the first dimensions of each are the batch shape.

    A key is a string or a tuple of strings; anything else indexes the batch. Strings are numpy's variable-length
    strings, with None for a missing one.

    Example:
        >>> pair = NestedArrayDict({"y": np.array([0, 1]), "agents": {"text": string_array(["a", None])}}, (2,))
        >>> pair["agents", "text"].tolist(), pair[1]["y"].item()
        (['a', None], 1)
    """

    def __init__(self, values: Values | None = None, batch_size: int | Sequence[int] = ()) -> None:
        self.batch_size = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
        self._arrays: dict[tuple[str, ...], Array] = {}
        for name, value in (values or {}).items():
            self[name] = value

    @property
    def batch_dims(self) -> int:
        return len(self.batch_size)

    def keys(self) -> Iterator[tuple[str, ...]]:
        """Yields the whole key of every array."""
        yield from self._arrays

    def items(self) -> Iterator[tuple[tuple[str, ...], Array]]:
        yield from self._arrays.items()

    def __contains__(self, key: object) -> bool:
        path = (key,) if isinstance(key, str) else key
        return isinstance(path, tuple) and any(each[: len(path)] == path for each in self._arrays)

    def __len__(self) -> int:
        if not self.batch_size:
            raise TypeError("a NestedArrayDict without a batch shape has no length")
        return self.batch_size[0]

    @overload
    def __getitem__(self, key: Key) -> Array | NestedArrayDict: ...
    @overload
    def __getitem__(self, key: Index) -> NestedArrayDict: ...
    def __getitem__(self, key: Key | Index) -> Array | NestedArrayDict:
        given: tuple[Any, ...] = key if isinstance(key, tuple) else (key,)
        found = NestedArrayDict(batch_size=self.batch_size)
        if given and all(isinstance(each, str) for each in given):
            if given in self._arrays:
                return self._arrays[given]
            depth = len(given)
            found._arrays = {each[depth:]: array for each, array in self._arrays.items() if each[:depth] == given}
            if not found._arrays:
                raise KeyError(f"no {'.'.join(given)} in {', '.join('.'.join(each) for each in self._arrays)}")
            return found
        # An index of the batch must not reach into the other dimensions, which numpy checks on a batch of bytes.
        found.batch_size = np.asarray(np.empty(self.batch_size, dtype=bool)[given]).shape
        found._arrays = {name: np.asarray(array[given], dtype=array.dtype) for name, array in self._arrays.items()}
        return found

    def array(self, *path: str) -> Array:
        """Returns one array."""
        return self._arrays[path]

    def __setitem__(self, key: Key, value: Array | Values | NestedArrayDict) -> None:
        path = (key,) if isinstance(key, str) else key
        if isinstance(value, NestedArrayDict):
            for inner, array in value.items():
                self[(*path, *inner)] = array
        elif isinstance(value, Mapping):
            for name, inner_value in value.items():
                self[(*path, name)] = inner_value
        else:
            array = string_array(value) if np.asarray(value).dtype.kind in "UOT" else np.asarray(value)
            if array.shape[: self.batch_dims] != self.batch_size:
                raise ValueError(f"{'.'.join(path)} has shape {array.shape}, expected {self.batch_size} and more")
            for other in self._arrays:
                if other != path and (other[: len(path)] == path or path[: len(other)] == other):
                    raise ValueError(f"{'.'.join(path)} would be an array and hold {'.'.join(other)}")
            self._arrays[path] = array

    def update(self, other: Values | NestedArrayDict) -> NestedArrayDict:
        for name, value in other.items():
            self[name] = value
        return self

    def clone(self) -> NestedArrayDict:
        copied = NestedArrayDict(batch_size=self.batch_size)
        copied._arrays = {name: array.copy() for name, array in self._arrays.items()}
        return copied

    def zeros_like(self) -> NestedArrayDict:
        """Returns the same structure with zeros and missing strings."""
        blank = NestedArrayDict(batch_size=self.batch_size)
        for name, array in self._arrays.items():
            is_text = array.dtype.kind == "T"
            blank._arrays[name] = np.full(array.shape, None, array.dtype) if is_text else np.zeros_like(array)
        return blank

    def to_dict(self) -> dict[str, object]:
        """Returns nested plain dictionaries of the arrays."""
        whole: dict[str, object] = {}
        for path, array in self._arrays.items():
            inner = whole
            for name in path[:-1]:
                inner = inner.setdefault(name, {})  # type: ignore[assignment]  # a dictionary by construction
            inner[path[-1]] = array
        return whole

    def __repr__(self) -> str:
        shown = ", ".join(f"{'.'.join(name)}: {array.dtype}{list(array.shape)}" for name, array in self.items())
        return f"NestedArrayDict({shown}; batch {list(self.batch_size)})"


def string_array(values: object) -> Array:
    """Returns an array of variable-length strings, in which None is a missing one."""
    return np.array(values, dtype=np.dtypes.StringDType(na_object=None))


def stack_nested_array_dicts(parts: Sequence[NestedArrayDict], dim: int = 0) -> NestedArrayDict:
    """Stacks equal structures along a new batch dimension."""
    shape = list(parts[0].batch_size)
    shape.insert(dim, len(parts))
    return _joined(parts, shape, lambda arrays: np.stack(arrays, axis=dim))


def concatenate_nested_array_dicts(parts: Sequence[NestedArrayDict], dim: int = 0) -> NestedArrayDict:
    """Joins equal structures along a batch dimension that exists."""
    shape = list(parts[0].batch_size)
    shape[dim] = sum(part.batch_size[dim] for part in parts)
    return _joined(parts, shape, lambda arrays: np.concatenate(arrays, axis=dim))


def _joined(parts: Sequence[NestedArrayDict], shape: Sequence[int], join: object) -> NestedArrayDict:
    names = list(parts[0].keys())
    for part in parts:
        if set(part.keys()) != set(names):
            raise ValueError(f"keys differ: {sorted(set(part.keys()) ^ set(names))}")
    joined = NestedArrayDict(batch_size=shape)
    for name in names:
        joined[name] = join([part.array(*name) for part in parts])  # type: ignore[operator]
    return joined
