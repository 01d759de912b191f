"""State is opt-out: a `KeepsState` object saves every attribute that could change results.

An attribute is saved if it is a tensor, an array, a scalar, a random generator, an object with `state_dict`, or a list
or dict of these. Constants (settings, specs, functions, classes) are recognised and left out. Any other object is an
error at the first save, so that state cannot be forgotten: list it in `not_state`, or give it a `state_dict`.
"""

from __future__ import annotations

import enum
import hashlib
import pathlib
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from quintain.typing import Saved, State, Stateful

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike, DTypeLike

    from quintain.typing import Array, Keyword

_SCALARS = (bool, int, float, str, type(None))
_CONSTANTS = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType,
              np.dtype, pathlib.Path, enum.Enum, range, frozenset)  # fmt: skip


Kept: TypeAlias = Any
"""An attribute of an object: state, or a constant."""

MOST_COUNTED = 1 << 48
"""More steps than any run has, and small enough for sums and products without overflow."""


class KeepsState:
    """Saves and restores its own attributes."""

    not_state: ClassVar[frozenset[str]] = frozenset()
    """Attributes that are left out; a subclass names its own, and those of its bases stay left out."""
    saved_counts: ClassVar[frozenset[str]] = frozenset()
    """Attributes that are non-negative integers; a state with other values is refused."""
    saved_shapes: ClassVar[frozenset[str]] = frozenset()
    """Arrays, tensors and mappings of them with constant shapes; a state with other shapes is refused."""

    def __init_subclass__(cls, **options: Keyword) -> None:
        super().__init_subclass__(**options)
        cls.not_state = frozenset().union(*(getattr(base, "not_state", ()) for base in cls.__mro__))

    def state_dict(self) -> State:
        saved: State = {}
        for name, value in vars(self).items():
            if name not in self.not_state and not _is_constant(value):
                saved[name] = _save(value, f"{type(self).__name__}.{name}")
        return saved

    def load_state_dict(self, state: State) -> None:
        own = {name for name, value in vars(self).items() if name not in self.not_state and not _is_constant(value)}
        if own != set(state):
            raise KeyError(f"{type(self).__name__}: saved state has {sorted(state)}, this object has {sorted(own)}")
        where = type(self).__name__
        for name in self.saved_counts & own:
            require_count(f"{where}.{name}", state[name])
        for name in self.saved_shapes & own:
            require_shapes(f"{where}.{name}", state[name], getattr(self, name))
        for name, saved in state.items():
            setattr(self, name, _restore(getattr(self, name), saved))


def require_count(where: str, value: Saved, most: int = MOST_COUNTED) -> int:
    """Returns a value of a saved state if it is an integer from zero to `most`; raises ValueError otherwise."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{where} is {value!r}, expected a whole number from 0 to {most}")
    return value


def require_within(where: str, values: ArrayLike, low: int, high: int) -> None:
    """Refuses values of a saved state outside [low, high]: they are used as indices."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{where} has numbers of {array.dtype}, expected integers")
    if array.size and (array.min() < low or array.max() > high):
        found = int(array.min() if array.min() < low else array.max())
        raise ValueError(f"{where} has {found}, expected {low} to {high}")


def require_shapes(where: str, saved: Saved, now: Kept) -> None:
    """Refuses arrays of a saved state with other shapes than the current ones."""
    if isinstance(now, Mapping):
        if not isinstance(saved, Mapping) or set(saved) != set(now):
            raise ValueError(f"{where} has other names than here")
        for name, value in now.items():
            require_shapes(f"{where}.{name}", saved[name], value)
    elif hasattr(now, "shape") and np.shape(saved) != tuple(now.shape):
        raise ValueError(f"{where} has the shape {np.shape(saved)}, expected {tuple(now.shape)}")


def _is_constant(value: Kept) -> bool:
    # Before the check below: a class whose instances are stateful has their methods too.
    if isinstance(value, _CONSTANTS):
        return True
    if isinstance(value, Stateful):
        return False
    # Frozen dataclasses and frozen pydantic models cannot change, so they come back with the settings.
    params = getattr(type(value), "__dataclass_params__", None)
    if is_dataclass(value) and params is not None and params.frozen:
        return True
    return bool(getattr(type(value), "model_config", {}).get("frozen", False))


def _save(value: Kept, where: str) -> Saved:
    if isinstance(value, Stateful):
        return value.state_dict()
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.copy()
    if hasattr(value, "detach"):
        return value.detach().clone()
    if isinstance(value, np.random.Generator):
        return save_generator(value)
    if isinstance(value, list | tuple):
        return [_save(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; keys must be text, because a file would make them text")
        return {key: _save(item, f"{where}[{key!r}]") for key, item in value.items()}
    raise TypeError(
        f"{where} is a {type(value).__name__}, which cannot be saved; give it state_dict and load_state_dict, "
        f"or list it in not_state if it cannot change a number"
    )


def _restore(now: Kept, saved: Saved) -> Kept:
    if isinstance(now, Stateful):
        # A torch module takes tensors only.
        now.load_state_dict({k: as_tensor(v) for k, v in saved.items()} if hasattr(now, "named_parameters") else saved)
        return now
    if isinstance(now, np.ndarray):
        saved = np.asarray(saved)
        if now.shape == saved.shape:
            np.copyto(now, saved, casting="no")  # in place: others may hold views of it
            return now
        return saved.astype(now.dtype, casting="no")
    if isinstance(now, np.generic):
        return type(now)(saved)
    if hasattr(now, "detach"):
        return now.copy_(as_tensor(saved)) if tuple(now.shape) == tuple(saved.shape) else as_tensor(saved)
    if isinstance(now, np.random.Generator):
        return restore_generator(saved)
    if isinstance(now, list | tuple):
        items = [_restore(a, b) for a, b in zip(now, saved, strict=True)] if len(now) == len(saved) else list(saved)
        return type(now)(items)
    if isinstance(now, Mapping):
        return {key: _restore(now[key], saved[key]) if key in now else saved[key] for key in saved}
    if isinstance(now, int | float) and not isinstance(saved, int | float | type(None)):
        raise ValueError(f"{str(saved)[:40]!r} stands where {now!r} does here, expected a number")
    return saved


def as_tensor(value: torch.Tensor | ArrayLike) -> torch.Tensor:
    """Makes a tensor with its own memory from a value of a checkpoint."""
    import torch

    return value.clone() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def copy_into(target: torch.Tensor, value: torch.Tensor | ArrayLike) -> None:
    """Copies a value of a checkpoint, or of another process, into a tensor: once, where both are on the CPU."""
    import torch

    if isinstance(value, torch.Tensor) or target.device.type != "cpu":
        target.copy_(as_tensor(value))
    else:
        np.copyto(target.numpy(), np.asarray(value), casting="unsafe")


def copied(contents: State) -> State:
    """Returns a state with copies of its tensors."""
    import torch

    return {
        name: copied(value) if isinstance(value, dict) else value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in contents.items()
    }


def as_tensors(saved: State) -> State:
    """Converts a checkpoint's values for a module's `load_state_dict`."""
    return {name: as_tensor(value) for name, value in saved.items()}


def save_generator(generator: np.random.Generator) -> State:
    """Serializes a generator's state; arrays stay arrays, big integers become text."""
    return {"bit_generator": _plain(generator.bit_generator.state)}


def restore_generator(saved: State) -> np.random.Generator:
    state = _unplain(saved["bit_generator"])
    bit_generator = getattr(np.random, _known_bit_generator(state["bit_generator"]))()
    bit_generator.state = state
    return np.random.Generator(bit_generator)


def _known_bit_generator(name: str) -> str:
    if name not in {"PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937"}:
        raise KeyError(f"unknown random generator {name!r} in saved state")
    return name


def _plain(value: Saved) -> Saved:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.copy()
    return hex(value) if isinstance(value, int) else value


def _unplain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unplain(item) for key, item in value.items()}
    return int(value, 16) if isinstance(value, str) and value.startswith(("0x", "-0x")) else value


class BulkArray:
    """A large array in a state tree, which a checkpoint stores in its own file under the hash of its contents.

    It shares the memory of its source. Equal contents have equal hashes, so an unchanged array is not written again; a
    caller that knows the hash of unchanged contents may pass it.
    """

    def __init__(self, array: Array, sha256: str | None = None) -> None:
        self.array = np.ascontiguousarray(array)
        self.sha256 = sha256 or hashlib.sha256(self.bytes.data).hexdigest()

    @property
    def bytes(self) -> Array:
        """Returns the contents as flat bytes, without a copy."""
        return self.array.reshape(-1).view(np.uint8)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return np.array(self.array, dtype=dtype, copy=copy)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BulkArray):
            return NotImplemented
        return (self.array.dtype, self.array.shape, self.sha256) == (other.array.dtype, other.array.shape, other.sha256)

    __hash__ = None  # type: ignore[assignment]  # its contents change
