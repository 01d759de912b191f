"""The benchmark's modules, imported as its scripts do, and forgotten afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"
MODULES = (
    "agents",
    "chart",
    "claims",
    "commits",
    "contestants",
    "environments",
    "free_agents",
    "image_agents",
    "image_env",
    "images",
    "intervals",
    "learners",
    "learning",
    "learning_tasks",
    "meter",
    "old_and_new",
    "peers",
    "processes",
    "quotes",
    "report",
    "results",
    "run",
    "startup",
    "wanted",
    "workloads",
)


class Bench(dict[str, ModuleType]):
    """Modules by name."""

    folder = BENCH


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.syspath_prepend(str(BENCH))
    yield Bench({name: import_module(name) for name in MODULES})
    for name in [name for name in sys.modules if name.split(".")[0] in MODULES]:
        del sys.modules[name]
