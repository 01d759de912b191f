"""Machine code of kernels: found in the cache, or made and kept there, and linked into this process."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from quintain.compiled.cache import kept_in, source_digest
from quintain.compiled.kernel import C_FUNCTION, Entry

if TYPE_CHECKING:
    from quintain.compiled.kernel import Kernel

_RETURNS = {"int": int, "float": float, "nothing": None}
ENTRY_NAME = "quintain_entry"


def load(kernel: Kernel[Any, Any], kinds: tuple[Any, ...]) -> Entry:
    """Returns the code for arguments of these kinds."""
    place = _place(kernel, kinds)
    kept = None if place is None else _read(place)
    if kept is None:
        from quintain.compiled.build import build

        kept = build(kernel, kinds)
        if place is not None:
            _write(place, kept)
    head, code = kept
    return _linked(code, head["needs"], _RETURNS[head["returns"]])


def is_kept(kernel: Kernel[Any, Any]) -> bool:
    """Says whether an earlier start left machine code of this kernel, for arguments of whatever kinds."""
    folder = _folder(kernel)
    return folder is not None and any(folder.glob(f"{kernel.function.__name__}-*.o"))


def _folder(kernel: Kernel[Any, Any]) -> Path | None:
    folder = kept_in()
    source = Path(kernel.function.__code__.co_filename)
    return None if folder is None else folder / source_digest(source.parent) / source.stem


def _place(kernel: Kernel[Any, Any], kinds: tuple[Any, ...]) -> Path | None:
    folder = _folder(kernel)
    if folder is None:
        return None
    told = json.dumps([*_machine(), sorted(kernel.fastmath), _told(kinds)])
    return folder / f"{kernel.function.__name__}-{hashlib.sha256(told.encode()).hexdigest()[:24]}.o"


@cache
def _machine() -> tuple[str, ...]:
    """What the code was made for and by: another processor might not know its instructions."""
    from importlib.metadata import version

    features = llvm.get_host_cpu_features().flatten()
    return version("numba"), llvmlite.__version__, llvm.get_host_cpu_name(), features


def _told(kind: Any) -> Any:
    """Returns a kind as what can be written down."""
    if isinstance(kind, tuple):
        return [_told(part) for part in kind]
    if isinstance(kind, np.dtype):
        return kind.descr if kind.names else kind.str
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else kind


def _read(place: Path) -> tuple[dict[str, Any], bytes] | None:
    """Returns what an earlier start kept; a file that was cut, by a full disk for example, is made again."""
    try:
        head, _, code = place.read_bytes().partition(b"\n")
        found: dict[str, Any] = json.loads(head)
    except (OSError, ValueError):
        return None
    return (found, code) if found["size"] == len(code) else None


def _write(place: Path, made: tuple[dict[str, Any], bytes]) -> None:
    head, code = made
    unfinished = place.with_suffix(f".{os.getpid()}")
    # Code that cannot be kept, because a disk is full for example, can be run all the same.
    with suppress(OSError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished.write_bytes(json.dumps({**head, "size": len(code)}).encode() + b"\n" + code)
        unfinished.replace(place)


def _linked(code: bytes, needs: list[str], returns: type | None) -> Entry:
    _prepare()
    missing = [name for name in needs if not llvm.address_of_symbol(name)]
    if missing:
        raise RuntimeError(f"compiled code needs {', '.join(missing)}, which this process does not have")
    # An engine of its own: code of two kernels must not find each other's functions by their names.
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Entry(C_FUNCTION(engine.get_function_address(ENTRY_NAME)), returns, engine)


@cache
def _prepare() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if not llvm.address_of_symbol("expf") and os.name == "posix":
        from ctypes.util import find_library

        llvm.load_library_permanently(find_library("m") or "libm.so.6")
