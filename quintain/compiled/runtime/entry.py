"""What compiling, keeping and calling a kernel share: its source, and the entry of its machine code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypedDict

ENTRY_NAME = "quintain_entry"
"""The symbol of every kernel's entry in its machine code."""

C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
"""How code is called; Python's other threads run meanwhile."""

Kinds = tuple[Hashable, ...]
"""The kinds of a call's arguments: bool, int, float, an array's dtype, axes and order, a tuple's class and parts."""


class Source(Protocol):
    """A function to compile, and which rules of floating-point arithmetic may be relaxed in it."""

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def fastmath(self) -> frozenset[str]: ...


class CodeHead(TypedDict):
    """What must be known to use machine code, kept beside it."""

    needs: list[str]
    """Symbols that the process must have."""
    returns: str
    """`int`, `float` or `nothing`."""


class Entry:
    """Machine code that can be called: it takes the address of a call's words, and returns whether it failed."""

    def __init__(self, function: Callable[[int], int], returns: type[float] | None, owner: Any) -> None:
        self.function = function
        self.returns = returns
        """`int`, `float`, or None for a kernel that returns nothing."""
        self.owner = owner
        """Must live as long as the code."""
