"""Package names that are imported when they are first used (PEP 562), because importing torch costs seconds."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Exported: TypeAlias = Any
"""A name of a package: a class, a function, or a constant."""
Exports: TypeAlias = tuple[Callable[[str], Exported], Callable[[], list[str]], list[str]]


def lazy_names(package: str, homes: Mapping[str, str]) -> Exports:
    """Returns `__getattr__`, `__dir__` and `__all__` for a package whose names live in the given modules."""

    def get_name(name: str) -> Exported:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    names = sorted(homes)
    return get_name, lambda: list(names), names


def registrar(kind: str) -> Callable[..., Any]:
    """Returns the `register` decorator of one kind of part."""

    def register(name: str, settings_class: Any = None, **options: Any) -> Any:
        from quintain.core import registry

        return registry.register(kind, name, settings_class, **options)

    register.__doc__ = f"Makes {kind.replace('_', ' ')} code available under a name, with the settings class it takes."
    return register
