"""The commands in hints about optional packages: they name the checkout and the interpreter that are in use."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from quintain.core import extras


class Installed:
    """A distribution that was installed from somewhere."""

    def __init__(self, url: str | None, *, editable: bool = False) -> None:
        self.origin = None if url is None else json.dumps({"url": url, "dir_info": {"editable": editable}})

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.origin


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    python = tmp_path / "venv" / "bin" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(extras.shutil, "which", lambda name: str(python.parent / name))
    monkeypatch.chdir(folder)
    return folder


def test_in_an_editable_checkout(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(checkout.as_uri(), editable=True))
    assert extras.install_command("box2d") == "pip install -e '.[box2d]'"


def test_outside_of_it_the_checkout_is_named(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(checkout.as_uri()))
    assert extras.install_command("export") == f"pip install '{checkout}[export]'"


def test_from_an_index(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(None))
    monkeypatch.setattr(extras, "__file__", str(checkout.parent / "site" / "quintain" / "core" / "extras.py"))
    assert extras.install_command("atari") == "pip install 'quintain[atari]'"


def test_where_pip_is_of_another_interpreter(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(checkout.as_uri(), editable=True))
    monkeypatch.chdir(checkout.parent)
    expected = "venv/bin/python -m pip install -e './a checkout[box2d]'"
    assert extras.install_command("box2d") == expected


def test_without_pip(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(checkout.as_uri(), editable=True))
    assert extras.install_command("box2d") == "uv pip install -e '.[box2d]'"
