from __future__ import annotations

import pytest

from tests import warm


@pytest.fixture(autouse=True)
def _warm_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts collectors in milliseconds; what their server imports is no matter of these tests."""
    warm.servers(monkeypatch)
