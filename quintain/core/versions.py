"""Facts about this process and machine that decide whether two runs can be bitwise equal."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quintain.typing import JsonObject

_CHANGES_NO_CODE = re.compile(r"NUMBA_(CACHE_.*|.*NUM_THREADS|THREADING_LAYER.*|CUDA_.*|DUMP_.*|.*WARN.*|COLOR_SCHEME)")
"""Numba's settings that do not change compiled code; every other one, also one of a later version, may change it."""


def quintain_version() -> str:
    try:
        return importlib.metadata.version("quintain")
    except importlib.metadata.PackageNotFoundError:
        return "0 (not installed)"


def facts(threads: int) -> JsonObject:
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
            "numba": _numba_version(),
        },
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
    }


def numba_settings() -> list[str]:
    """Returns numba's settings that may change compiled code, from the environment and its configuration file."""
    told = [f"{name}={value}" for name, value in os.environ.items() if is_code_setting(name)]
    with suppress(OSError):
        contents = Path(".numba_config.yaml").read_bytes()
        told.append(f".numba_config.yaml={hashlib.sha256(contents).hexdigest()}")
    return sorted(told)


def is_code_setting(name: str) -> bool:
    return name.startswith("NUMBA_") and not _CHANGES_NO_CODE.fullmatch(name)


def _version_if_imported(package: str, module: str = "") -> str | None:
    return importlib.metadata.version(package) if (module or package) in sys.modules else None


def _numba_version() -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        found = _version_if_imported("numba", "llvmlite")
        return found and " ".join([found, *numba_settings()])
    return None
