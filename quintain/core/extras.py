"""Optional packages: whether one is installed, and the command that installs it from where the user is."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from quintain.errors import SettingsError


def require_extra(setting: str, package: str) -> None:
    """Refuses a setting whose package is not installed, with the command that installs it."""
    if find_spec(package) is None:
        raise SettingsError(
            f"{setting} needs the package {package}, which is not installed. Install it with: "
            f"{install_command(package)}",
            code="E0242",
        )


def install_command(extra: str) -> str:
    """Returns the command that installs an extra: from the checkout that quintain was installed from, if there is one.

    The name `quintain` alone would be looked up in a package index, which need not know this version.
    """
    folder, is_editable = _installed_from()
    if folder is None:
        return pip_command(f"quintain[{extra}]")
    here = os.path.relpath(folder)
    where = "." if here == "." else f"./{here}" if not here.startswith("..") else str(folder)
    return pip_command(*(("-e",) if is_editable else ()), f"{where}[{extra}]")


def pip_command(*arguments: str) -> str:
    """Returns `pip install ...` for this interpreter: the `pip` of the search path may be another's."""
    found = shutil.which("pip")
    is_ours = found is not None and Path(found).parent == Path(sys.executable).parent
    if find_spec("pip") is None:
        command = ["uv", "pip", "install"]
    elif is_ours:
        command = ["pip", "install"]
    else:
        here = os.path.relpath(sys.executable)
        command = [here if not here.startswith("..") else sys.executable, "-m", "pip", "install"]
    return " ".join(shlex.quote(word) for word in (*command, *arguments))


def _installed_from() -> tuple[Path | None, bool]:
    """Returns the folder that quintain was installed from and whether it is editable; None for a package index."""
    try:
        origin = json.loads(distribution("quintain").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    address = urlsplit(str(origin.get("url", "")))
    folder = Path(unquote(address.path))
    if address.scheme == "file" and (folder / "pyproject.toml").is_file():
        return folder, bool(origin.get("dir_info", {}).get("editable"))
    # Run from a checkout that is on the import path only.
    checkout = Path(__file__).resolve().parents[2]
    return (checkout, True) if (checkout / "pyproject.toml").is_file() else (None, False)
