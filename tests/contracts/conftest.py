"""A registry that also holds a user's parts, for each test its own."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
import torch

from quintain.core import registry
from tests.envs import fake_envpool

USER_PARTS = "tests.contracts.user_parts"


@pytest.fixture(autouse=True)
def user_parts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    shipped = {kind: {name: registry.get(kind, name) for name in registry.names(kind)} for kind in registry.KINDS}
    monkeypatch.setattr(registry, "_registered", shipped)
    monkeypatch.delitem(sys.modules, USER_PARTS, raising=False)
    monkeypatch.setitem(sys.modules, "envpool", fake_envpool)
    torch.set_num_threads(1)
    parts = importlib.import_module(USER_PARTS)
    registry.register("writer", "list")(parts.ListWriter)
    return parts
