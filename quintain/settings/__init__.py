"""The typed, frozen tree of all settings. Imports no torch; names load on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quintain.settings.base import Count, PartSettings, Schedule, Settings
    from quintain.settings.fingerprint import changed_keys
    from quintain.settings.tree import RunFile

__all__ = ["Count", "PartSettings", "RunFile", "Schedule", "Settings", "changed_keys"]

_HOMES = {
    "Count": "base",
    "PartSettings": "base",
    "RunFile": "tree",
    "Schedule": "base",
    "Settings": "base",
    "changed_keys": "fingerprint",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
