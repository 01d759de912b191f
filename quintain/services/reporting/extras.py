"""Checks, without an import, whether the optional package of a setting is installed."""

from __future__ import annotations

from importlib.util import find_spec

from quintain.errors import SettingsError


def require_extra(setting: str, package: str) -> None:
    """Refuses a setting whose package is not installed, with the command that installs it."""
    if find_spec(package) is None:
        raise SettingsError(
            f"{setting} needs the package {package}, which is not installed. Install it with: pip install "
            f'"quintain[{package}]"',
            code="E0242",
        )
