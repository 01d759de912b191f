"""Sweeps: a grid of settings and seeds, each combination a run of its own, summarized in one table."""

from __future__ import annotations

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Grid": "quintain.runs.sweeps.grid",
        "RunResult": "quintain.runs.sweeps.table",
        "SweepDirectory": "quintain.runs.sweeps.directory",
        "SweepRow": "quintain.runs.sweeps.table",
        "SweepTable": "quintain.runs.sweeps.table",
        "sweep": "quintain.runs.sweeps.start",
    },
)
