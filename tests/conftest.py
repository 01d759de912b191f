"""Keeps what tests sign away from the key of the user who runs them."""

from __future__ import annotations

import os
import tempfile

import pytest

_state = tempfile.TemporaryDirectory(prefix="quintain-state-")


def pytest_configure(config: pytest.Config) -> None:
    # In the environment, because many tests run commands in processes of their own.
    os.environ["XDG_STATE_HOME"] = _state.name
