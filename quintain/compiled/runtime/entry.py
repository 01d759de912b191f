"""Shared by compiling, caching and calling a kernel: its source, and the entry point of its machine code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypedDict

ENTRY_NAME = "quintain_entry"
"""The symbol of every kernel's entry in its machine code."""

C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
"""Calling convention; the interpreter's lock is released meanwhile."""

Kinds = tuple[Hashable, ...]
"""The kinds of a call's arguments: bool, int, float, an array's dtype, axes and order, a tuple's class and parts."""


class Source(Protocol):
    """A function to compile, and its relaxed floating-point rules."""

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def fastmath(self) -> frozenset[str]: ...


class CodeHead(TypedDict):
    """Metadata of machine code, cached with it."""

    needs: list[str]
    """Symbols that the process must provide."""
    returns: str
    """`int`, `float` or `nothing`."""


class Entry:
    """Callable machine code: it takes the address of a call's words, and returns whether it failed."""

    def __init__(self, function: Callable[[int], int], returns: type[float] | None, owner: Any) -> None:
        self.function = function
        self.returns = returns
        """`int`, `float`, or None for a kernel without a result."""
        self.owner = owner
        """Must live as long as the code."""
