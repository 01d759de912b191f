"""Machine code of kernels: loaded from the cache, or compiled and cached, and linked into this process."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Hashable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from quintain.compiled.runtime.cache import kept_in, make_private, read_private, source_digest, write_private
from quintain.compiled.runtime.entry import C_FUNCTION, ENTRY_NAME, CodeHead, Entry, Kinds, Source
from quintain.core.versions import numba_settings
from quintain.errors import SettingsError

_RETURNS = {"int": int, "float": float, "nothing": None}
_FORMAT = 2
"""Version of the file format; other files are made again."""
_SVML = {"linux": "libsvml.so", "darwin": "libsvml.dylib", "win32": "svml_dispmd"}


def load(kernel: Source, kinds: Kinds) -> Entry:
    """Returns the code for arguments of these kinds; doubtful cached code is compiled again."""
    place = _place(kernel, kinds)
    if place is not None:
        # Whatever is wrong with it is seen before any of it is called.
        with suppress(OSError, ValueError, KeyError, TypeError, RuntimeError):
            return _linked(*_unpacked(read_private(place), place))
    try:
        from quintain.compiled.runtime.build import build, is_as_environment_says
    except ImportError as error:
        raise SettingsError(
            f"numba, which compiles kernels, cannot be imported: {error}. Install it again, or set "
            f"policy.compiled=false",
            code="E0242",
        ) from error
    head, code = build(kernel, kinds)
    # Code that cannot be kept, because a disk is full for example, can be run all the same.
    if place is not None and is_as_environment_says():
        with suppress(OSError):
            make_private(place.parent)
            write_private(place, _packed(head, code, place))
    return _linked(head, code)


def folder_of(kernel: Source) -> Path | None:
    """Returns the folder where machine code of this kernel is cached; None if it is not."""
    folder = kept_in()
    source = Path(kernel.function.__code__.co_filename)
    # Of the compiler and the processor: another processor might lack its instructions.
    made_by = _digest([*_machine(), numba_settings()])
    return None if folder is None else folder / f"{source_digest(source.parent)}-{made_by}" / source.stem


def _place(kernel: Source, kinds: Kinds) -> Path | None:
    folder = folder_of(kernel)
    if folder is None:
        return None
    return folder / f"{kernel.function.__name__}-{_digest([sorted(kernel.fastmath), _told(kinds)])}.o"


@cache
def _machine() -> tuple[str, ...]:
    features = llvm.get_host_cpu_features().flatten()
    made_with = (version("numba"), llvmlite.__version__, np.__version__, platform.python_version())
    return *made_with, llvm.get_host_cpu_name(), features, "svml" if _has_svml() else ""


def _has_svml() -> bool:
    """Whether numba would use Intel's SVML, as it does if the library can be loaded."""
    try:
        llvm.load_library_permanently(_SVML.get(sys.platform, "svml"))
    except RuntimeError:
        return False
    return True


def _digest(told: Any) -> str:
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:24]


def _told(kind: Hashable) -> Any:
    """Serializes a kind."""
    if isinstance(kind, tuple):
        return [_told(part) for part in kind]
    if isinstance(kind, np.dtype):
        return kind.descr if kind.names else kind.str
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else kind


def _packed(head: CodeHead, code: bytes, place: Path) -> bytes:
    """Returns a file's contents: a hash of the rest, a line of JSON, and the code."""
    told = {**head, "format": _FORMAT, "for": f"{place.parent.parent.name}/{place.parent.name}/{place.name}"}
    rest = json.dumps(told).encode() + b"\n" + code
    return hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def _unpacked(contents: bytes, place: Path) -> tuple[CodeHead, bytes]:
    """Returns head and code if they were packed for this path; raises ValueError otherwise."""
    digest, _, rest = contents.partition(b"\n")
    if digest != hashlib.sha256(rest).hexdigest().encode():
        raise ValueError("the contents are not those that were written")
    line, _, code = rest.partition(b"\n")
    head: CodeHead = json.loads(line)
    if _packed({"needs": head["needs"], "returns": head["returns"]}, code, place) != contents:
        raise ValueError("the file was made for another place")
    return head, code


def _linked(head: CodeHead, code: bytes) -> Entry:
    _prepare()
    # LLVM itself ends the process where a symbol is missing.
    missing = [name for name in head["needs"] if not llvm.address_of_symbol(name)]
    if missing:
        raise RuntimeError(f"compiled code needs {', '.join(missing)}, which this process does not have")
    # An engine of its own: code of two kernels must not find each other's functions by their names.
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Entry(C_FUNCTION(engine.get_function_address(ENTRY_NAME)), _RETURNS[head["returns"]], engine)


@cache
def _prepare() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if not llvm.address_of_symbol("expf") and os.name == "posix":
        from ctypes.util import find_library

        llvm.load_library_permanently(find_library("m") or "libm.so.6")
