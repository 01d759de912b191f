"""A registry that also holds a user's parts, for each test its own."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from quintain.core import registry
from tests import warm
from tests.envs import fake_envpool

USER_PARTS = "tests.contracts.user_parts"


@pytest.fixture(scope="session")
def shipped_and_users() -> tuple[dict[str, dict[str, Any]], ModuleType]:
    """Returns the parts that are shipped together with a user's, and the user's module; both are made once."""
    with pytest.MonkeyPatch.context() as patch:
        shipped = {kind: {name: registry.get(kind, name) for name in registry.names(kind)} for kind in registry.KINDS}
        patch.setattr(registry, "_registered", shipped)
        patch.delitem(sys.modules, USER_PARTS, raising=False)
        patch.setitem(sys.modules, "envpool", fake_envpool)
        parts = importlib.import_module(USER_PARTS)
        registry.register("writer", "list")(parts.ListWriter)
    return shipped, parts


@pytest.fixture(autouse=True)
def user_parts(
    shipped_and_users: tuple[dict[str, dict[str, Any]], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    registered, parts = shipped_and_users
    monkeypatch.setattr(registry, "_registered", {kind: dict(named) for kind, named in registered.items()})
    monkeypatch.setitem(sys.modules, USER_PARTS, parts)
    monkeypatch.setitem(sys.modules, "envpool", fake_envpool)
    warm.servers(monkeypatch)
    torch.set_num_threads(1)
    return parts
