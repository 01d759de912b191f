"""Finds out, without importing anything, whether an optional package is there for a setting that needs it."""

from __future__ import annotations

from importlib.util import find_spec

from quintain.errors import SettingsError


def require_extra(setting: str, package: str) -> None:
    """Refuses a setting whose package is not installed, with the command that installs it; extras are named alike."""
    if find_spec(package) is None:
        raise SettingsError(
            f"{setting} needs the package {package}, which is not installed. Install it with: pip install "
            f'"quintain[{package}]"',
            code="E0242",
        )
