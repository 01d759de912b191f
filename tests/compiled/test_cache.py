"""Compiled code is kept where only its user can write, is compiled once, and is never older than its source."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintain.compiled import cache
from quintain.compiled.kernel import kernel
from tests.architecture.source import ROOT

PART = "from quintain.compiled.kernel import kernel_part\n\n@kernel_part\ndef part(x):\n    return x + {added}\n"
WHOLE = """
from quintain.compiled.kernel import kernel
from parts import part

@kernel
def whole(x):
    return 2 * part(x)
"""
CALL = """
import sys
from whole import whole
print(whole(20), "numba" in sys.modules)
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Lets every test decide anew where code is kept."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(cache, "user_cache_folder", lambda: tmp_path / "caches")
    cache.kept_in.cache_clear()
    yield
    cache.kept_in.cache_clear()


def test_code_is_kept_among_the_users_caches_and_nobody_else_may_write_there(tmp_path: Path) -> None:
    folder = cache.kept_in()
    assert folder == tmp_path / "caches" / "quintain" / "compiled"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert cache.cache_note() == ""


def test_numbas_own_variable_has_the_last_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "mine"))
    assert cache.kept_in() == tmp_path / "mine"


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "caches" / "quintain" / "compiled"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    assert cache.kept_in() is None
    assert f"cannot be kept in {folder}" in cache.cache_note()


def test_without_a_folder_functions_are_compiled_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "caches").write_text("a file where a folder should be")

    def doubled(x: int) -> int:
        return 2 * x

    assert cache.kept_in() is None
    assert kernel(doubled)(21) == 42
    assert "Set NUMBA_CACHE_DIR" in cache.cache_note()


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "{value}"),
        ("linux", "", "{home}/.cache"),
        ("darwin", "", "{home}/Library/Caches"),
        ("win32", "LOCALAPPDATA", "{value}"),
        ("win32", "", "{home}/AppData/Local"),
    ],
)
def test_every_system_has_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, variable: str, expected: str
) -> None:
    monkeypatch.undo()
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    if variable:
        monkeypatch.setenv(variable, "/somewhere")
    assert cache.user_cache_folder() == Path(expected.format(value="/somewhere", home=tmp_path))


@pytest.mark.slow
def test_a_kernel_is_loaded_the_second_time_and_compiled_anew_when_a_part_of_it_changes(tmp_path: Path) -> None:
    (tmp_path / "whole.py").write_text(WHOLE)

    def answer(added: int) -> list[str]:
        (tmp_path / "parts.py").write_text(PART.format(added=added))
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "XDG_CACHE_HOME": str(tmp_path / "caches")}
        environment.pop("NUMBA_CACHE_DIR", None)
        words = [sys.executable, "-B", "-c", CALL]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.split()

    # What it returns, and whether the compiler was needed.
    assert answer(1) == ["42", "True"]
    assert answer(1) == ["42", "False"]
    assert answer(2) == ["44", "True"]


@pytest.mark.parametrize("left", [slice(0, 0), slice(0, 20), slice(0, -100)], ids=["nothing", "half a head", "a part"])
def test_code_that_was_cut_short_is_made_again(tmp_path: Path, left: slice) -> None:
    def doubled(x: int) -> int:
        return 2 * x

    assert kernel(doubled)(21) == 42
    (kept,) = tmp_path.rglob("doubled-*.o")
    kept.write_bytes(kept.read_bytes()[left])
    assert kernel(doubled)(21) == 42
    head, _, code = kept.read_bytes().partition(b"\n")
    assert json.loads(head)["size"] == len(code)


def test_code_that_cannot_be_kept_is_run_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(x: int) -> int:
        return 2 * x

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert kernel(doubled)(21) == 42
    assert not list(tmp_path.rglob("doubled-*.o"))
