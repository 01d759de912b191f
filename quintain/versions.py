"""What this process runs on: the facts that decide whether two runs can be equal to the last bit."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import Any


def quintain_version() -> str:
    try:
        return importlib.metadata.version("quintain")
    except importlib.metadata.PackageNotFoundError:
        return "0 (not installed)"


def facts(threads: int) -> dict[str, Any]:
    """Returns versions, instruction set and threads, for the manifest of a checkpoint."""
    import numpy as np
    import torch

    return {
        "threads": threads,
        "versions": {
            "quintain": quintain_version(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
            "gymnasium": _version_if_imported("gymnasium"),
            # What made the kernels; it is not imported where they were made before, but what links them is.
            "numba": _version_if_imported("numba", "llvmlite"),
        },
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
    }


def _version_if_imported(package: str, module: str = "") -> str | None:
    return importlib.metadata.version(package) if (module or package) in sys.modules else None
