"""A registry of its own for each test: the files of users register names that no other test is to see."""

from __future__ import annotations

import sys

import pytest

from quintain.core import registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = {kind: {name: registry.get(kind, name) for name in registry.names(kind)} for kind in registry.KINDS}
    monkeypatch.setattr(registry, "_registered", shipped)
    for module in [name for name in sys.modules if name.startswith("examples.") or name == "tests.extending.signals"]:
        monkeypatch.delitem(sys.modules, module)
