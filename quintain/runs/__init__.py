"""A run from start to end: composition root, run directory, resume, evaluation, export, ranks."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    # `from quintain import launch` finds it here, and imports nothing until then.
    if name == "launch":
        return import_module("quintain.runs.launch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
