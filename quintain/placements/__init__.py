"""Placements: where actors run (inline, in a thread or in a process)."""

from __future__ import annotations

from quintain.core.lazy import lazy_names, registrar

register = registrar("placement")
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "LocalSettings": "quintain.placements.settings",
        "LocalSource": "quintain.placements.local",
        "PlacementSettings": "quintain.placements.settings",
    },
)
__all__ += ["register"]
