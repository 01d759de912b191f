"""Compiles kernels with numba, in a form that can be called without it.

Numba's own dispatch inspects every argument in each call. Here a kernel gets an entry point that reads all arguments
from one block of words, laid out as numba passes them: an array is two unused pointers, its size, the size of an item,
its address, its shape and its strides; a tuple is its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import config, types
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler import Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu_options import FastMathOptions
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from quintain.compiled.runtime.entry import ENTRY_NAME, CodeHead, Kinds, Source
from quintain.core.versions import is_code_setting

_WORD = ir.IntType(64)
_NUMBERS = {bool: types.boolean, int: types.int64, float: types.float64}
_RETURNS = {types.int64: "int", types.float64: "float", types.none: "nothing"}


def compiled_part(function: Callable[..., Any], fastmath: frozenset[str], *, is_inlined: bool = True) -> Any:
    """Compiles a function that kernels call; or, not inlined, one that tests call from Python."""
    # Always inlined: a part that stands by itself would be linked to whichever kernel was loaded first.
    inside: dict[str, Any] = (
        {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True} if is_inlined else {}
    )
    return numba.njit(function, error_model="numpy", fastmath=set(fastmath) or False, **inside)


@global_compiler_lock  # type: ignore[untyped-decorator]
def build(kernel: Source, kinds: Kinds) -> tuple[CodeHead, bytes]:
    """Returns machine code for arguments of these kinds, and its metadata."""
    typing, target = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    target.refresh()
    flags: Any = Flags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.nrt = True
    flags.error_model = "numpy"
    flags.fastmath = FastMathOptions(set(kernel.fastmath) or False)
    arguments = tuple(_type_of(kind) for kind in kinds)
    with _optimizing_once():
        made = compile_extra(typing, target, kernel.function, arguments, None, flags, {})
        module = _with_entry(target, made, arguments)
    lines = str(module).splitlines()
    declared = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    needs = [name for name in declared if any(f"@{name}(" in line for line in lines if not line.startswith("declare"))]
    code = target.codegen()._tm.emit_object(module)
    return {"needs": needs, "returns": _RETURNS[made.signature.return_type]}, code


def is_as_environment_says() -> bool:
    """Whether numba's settings are those of the environment, which name cached code, not changed in Python."""
    set_now = _code_settings()
    values = vars(config)
    kept = {name: value for name, value in values.items() if name.isupper()}
    try:
        config._EnvReloader()
        return _code_settings() == set_now
    except RuntimeError:  # its threads run already, in another number
        return False
    finally:
        values.update(kept)


def _code_settings() -> dict[str, str]:
    return {
        name: repr(value) for name, value in vars(config).items() if name.isupper() and is_code_setting(f"NUMBA_{name}")
    }


@contextmanager
def _optimizing_once() -> Iterator[None]:
    """Optimizes the whole only: parts are inlined there, and each of them alone would take as long."""
    library_class: Any = CPUCodeLibrary
    optimize = library_class._optimize_final_module

    def optimize_whole(library: Any) -> None:
        if library.name == ENTRY_NAME:
            optimize(library)

    library_class._optimize_final_module = optimize_whole
    try:
        yield
    finally:
        library_class._optimize_final_module = optimize


def _type_of(kind: Any) -> Any:
    if isinstance(kind, type):
        return _NUMBERS[kind]
    if isinstance(kind[0], np.dtype):
        dtype, num_dims, is_contiguous = kind
        return types.Array(numba.from_dtype(dtype), num_dims, "C" if is_contiguous else "A")
    cls, parts = kind
    inner = [_type_of(part) for part in parts]
    return types.Tuple(inner) if cls is tuple else types.NamedTuple(inner, cls)


def _with_entry(target: Any, made: Any, arguments: tuple[Any, ...]) -> Any:
    """Links a kernel with its entry point, and returns the optimized module."""
    library = target.codegen().create_library(ENTRY_NAME)
    module = library.create_ir_module(ENTRY_NAME)
    described = target.call_conv.get_function_type(made.signature.return_type, arguments)
    inner = ir.Function(module, described, made.fndesc.llvm_func_name)
    entry = ir.Function(module, ir.FunctionType(ir.IntType(32), [_WORD.as_pointer()]), ENTRY_NAME)
    words = entry.args[0]
    builder = ir.IRBuilder(entry.append_basic_block())
    returned, failure, *wanted = described.args
    given = [
        builder.load(builder.bitcast(builder.gep(words, [ir.Constant(_WORD, 1 + i)]), kind.as_pointer()))
        for i, kind in enumerate(wanted)
    ]
    # Arrays belong to whoever calls: nobody counts who looks at them.
    for name in ("NRT_incref", "NRT_decref"):
        counting = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()]), name)
        ir.IRBuilder(counting.append_basic_block()).ret_void()
    told = builder.alloca(failure.pointee)
    builder.ret(builder.call(inner, [builder.bitcast(words, returned), told, *given]))
    library.add_ir_module(module)
    library.add_linking_library(made.library)
    library.finalize()
    return library._final_module


def matrix(flat: Any, first: int, num_rows: int, num_columns: int) -> Any:
    """Returns a part of a flat array, from offset `first`, as a matrix."""
    # Numba's own reshape may fail, and can only do so with the help of numba.
    return _matrix_view(flat, first, num_rows, num_columns)  # type: ignore[call-arg]  # numba adds the first one


@intrinsic
def _matrix_view(_: Any, flat: Any, first: Any, num_rows: Any, num_columns: Any) -> Any:
    matrix = types.Array(flat.dtype, 2, "C")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = make_array(signature.args[0])(context, builder, args[0])
        shown = make_array(matrix)(context, builder)
        size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(flat.dtype)))
        populate_array(
            shown,
            data=builder.gep(source.data, [args[1]]),
            shape=[args[2], args[3]],
            strides=[builder.mul(args[3], size), size],
            itemsize=size,
            meminfo=None,
        )
        return shown._getvalue()

    return matrix(flat, types.intp, types.intp, types.intp), generate
