"""Functions that are compiled for the types of their arguments, and called without the compiler.

A call uses machine code from the cache. Numba, which makes it, is imported only for code that is not cached yet: it
would take half a second and 60 MB in every run. A kernel takes scalars, arrays, and nested tuples of them; it may
neither allocate nor raise.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Hashable
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

from quintain.compiled.runtime.entry import Entry, Kinds

if TYPE_CHECKING:
    from quintain.typing import Array

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be fused and reordered, which is what lets them use whole vectors. NaN and infinity keep their meaning: the
# run must see them.
_FAST = frozenset({"arcp", "contract", "nsz", "reassoc"})
_EXACT: frozenset[str] = frozenset()

_RETURNED: dict[type[float] | None, type[np.number[Any]]] = {float: np.float64, int: np.int64, None: np.uint64}


def why_unavailable() -> str:
    """Returns why nothing can be compiled here; empty if it can. Cached code is ignored."""
    # Not by what is in the cache: whether a run is compiled must not depend on who ran before.
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}:
        return "NUMBA_DISABLE_JIT is set"
    for package in ("numba", "llvmlite"):
        try:
            is_there = find_spec(package) is not None
        except (ImportError, ValueError):
            is_there = False
        if not is_there:
            return f"{package} is not installed"
    return ""


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """Compiles a function that is called from Python."""
    return Kernel(function, _EXACT)


def fast_kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """Compiles a function that is called from Python, with reordered sums (fast math)."""
    return Kernel(function, _FAST)


def kernel_part(function: Function) -> Function:
    """Compiles a function that kernels of the same folder call; it is inlined."""
    # Without fast-math the compiler neither reorders nor fuses operations: numbers are those of the source as written.
    return cast(Function, Part(function, _EXACT))


def fast_part(function: Function) -> Function:
    """Compiles a function that kernels of the same folder call, with reordered sums (fast math)."""
    return cast(Function, Part(function, _FAST))


class Part:
    """A function inside kernels; a call from Python, as in tests, compiles it separately."""

    def __init__(self, function: Callable[..., Any], fastmath: frozenset[str]) -> None:
        self.function = function
        self.fastmath = fastmath

    @cached_property
    def inlined(self) -> Any:
        from quintain.compiled.runtime.build import compiled_part

        return compiled_part(self.function, self.fastmath)

    @cached_property
    def alone(self) -> Any:
        from quintain.compiled.runtime.build import compiled_part

        return compiled_part(self.function, self.fastmath, is_inlined=False)

    @property
    def _numba_type_(self) -> Any:
        """Numba's protocol for a name that a kernel uses."""
        return self.inlined._numba_type_

    def __call__(self, *args: Any) -> Any:
        return self.alone(*args)


class _MatrixView(Part):
    """A part of a flat array as a matrix, inside kernels."""

    def __init__(self) -> None:
        super().__init__(lambda *_: None, _EXACT)

    @cached_property
    def inlined(self) -> Any:
        from quintain.compiled.runtime.build import compiled_part, matrix

        return compiled_part(matrix, self.fastmath)


matrix = _MatrixView()


class Kernel(Generic[P, R]):
    """A function with machine code for each kind of arguments."""

    def __init__(self, function: Callable[P, R], fastmath: frozenset[str]) -> None:
        self.function = function
        self.fastmath = fastmath
        self.entries: dict[Kinds, Entry] = {}

    @property
    def is_kept(self) -> bool:
        """Whether its machine code is cached, for any kinds of arguments."""
        # Here, because it needs llvmlite.
        from quintain.compiled.runtime.machine_code import folder_of

        folder = folder_of(self)
        return folder is not None and any(folder.glob(f"{self.function.__name__}-*.o"))

    def __call__(self, *args: P.args, **none: P.kwargs) -> R:
        return self.bind(*args, **none)()

    def bind(self, *args: P.args, **none: P.kwargs) -> Call[R]:
        """Returns the call bound to these arguments, for repeated use: arrays are read in place."""
        if none:
            raise TypeError(f"{self.function.__name__}() takes its arguments by their places")
        words: list[int] = [0]
        kinds = tuple([_lay_out(arg, words) for arg in args])
        entry = self.entries.get(kinds)
        if entry is None:
            from quintain.compiled.runtime.machine_code import load

            entry = self.entries[kinds] = load(self, kinds)
        return Call(entry, np.array(words, np.uint64), args)


class Call(Generic[R]):
    """A kernel with bound arguments."""

    def __init__(self, entry: Entry, words: Array, args: tuple[Any, ...]) -> None:
        self.function = entry.function
        self.words = words
        self.address = words.ctypes.data
        # The entry, so that the code stays; the arguments, so that their memory does.
        self.kept = (entry, args)
        self.returned = words[:1].view(_RETURNED[entry.returns])
        self.has_result = entry.returns is not None

    def __call__(self) -> R:
        if self.function(self.address):
            raise RuntimeError("a kernel failed; kernels may not")
        return cast(R, self.returned.item() if self.has_result else None)


def _lay_out(value: Any, words: list[int]) -> Hashable:
    """Appends an argument to a call's words in numba's layout, and returns its kind."""
    if isinstance(value, np.ndarray):
        address, size = value.__array_interface__["data"][0], value.itemsize
        words += (0, 0, value.size, size, address, *value.shape, *(step % 2**64 for step in value.strides))
        return value.dtype, value.ndim, value.flags.c_contiguous
    if isinstance(value, tuple):
        return type(value), tuple([_lay_out(part, words) for part in value])
    if isinstance(value, bool | np.bool_):
        words.append(int(value))
        return bool
    if isinstance(value, int | np.integer):
        words.append(int(value) % 2**64)
        return int
    words.extend(struct.unpack("Q", struct.pack("d", float(value))))
    return float
