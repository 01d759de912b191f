"""Compiled acting and learning for small networks, with one entry point: `quintain.compiled.accelerate`.

The composition root plugs kernels into the policies and algorithms that it makes. `runtime` compiles and calls kernels,
`kernels` are the compiled functions, and the modules here connect kernels with policies and algorithms.
"""

from __future__ import annotations

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__, {"Accelerated": "quintain.compiled.plug", "accelerate": "quintain.compiled.plug"}
)
