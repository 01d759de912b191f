"""Compiled code is kept where only its user can write, is compiled once, and is never older than its source."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintain.compiled.runtime import cache, machine_code
from quintain.compiled.runtime.kernel import kernel
from tests.architecture.source import ROOT

PART = """
from quintain.compiled.runtime.kernel import kernel_part

@kernel_part
def part(x):
    return x + {added}
"""
WHOLE = """
from quintain.compiled.runtime.kernel import kernel
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


@pytest.fixture(params=["the user's caches", "NUMBA_CACHE_DIR"])
def folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where code would be kept, by default or by numba's variable."""
    if request.param == "NUMBA_CACHE_DIR":
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "mine"))
        return tmp_path / "mine"
    return tmp_path / "caches" / "quintain" / "compiled"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707])
def test_a_folder_that_others_may_write_is_not_used(folder: Path, mode: int) -> None:
    folder.mkdir(parents=True)
    folder.chmod(mode)
    assert cache.kept_in() is None
    assert f"cannot be kept in {folder}, which can be written by other users" in cache.cache_note()


def test_a_folder_of_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700, parents=True)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert cache.kept_in() is None
    assert "belongs to another user" in cache.cache_note()


def test_a_linked_folder_is_not_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(tmp_path / "elsewhere")
    assert cache.kept_in() is None
    assert "is a link" in cache.cache_note()


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


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The file of a kernel that was compiled before."""
    assert kernel(doubled)(21) == 42
    (place,) = tmp_path.rglob("doubled-*.o")
    return place


def doubled(x: int) -> int:
    return 2 * x


def is_made_again(place: Path) -> bool:
    """Says whether a start does not use the file as it is, answers all the same and leaves a sound file behind."""
    before = place.lstat().st_ino
    assert kernel(doubled)(21) == 42
    machine_code._unpacked(cache.read_private(place), place)
    return place.lstat().st_ino != before


def test_code_that_is_sound_is_not_made_again(kept: Path) -> None:
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert not is_made_again(kept)


@pytest.mark.parametrize("left", [slice(0, 0), slice(0, 20), slice(0, -100)], ids=["nothing", "half a head", "a part"])
def test_code_that_was_cut_short_is_made_again(kept: Path, left: slice) -> None:
    kept.write_bytes(kept.read_bytes()[left])
    assert is_made_again(kept)


def test_no_flipped_bit_gets_as_far_as_the_linker(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kept.read_bytes()
    # Every bit of the head, and one of each seventh byte of the code.
    places = [*range(8 * 600), *range(8 * 600, 8 * len(whole), 57)]
    assert len(whole) > 1000
    for place in places:
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(ValueError, match=r"not those that were written"):
            machine_code._unpacked(bytes(flipped), kept)


@pytest.mark.parametrize("place", [0, 64, 70, 400, -1])
def test_a_flipped_bit_is_mended_by_the_next_start(kept: Path, place: int) -> None:
    flipped = bytearray(kept.read_bytes())
    flipped[place] ^= 4
    kept.write_bytes(flipped)
    assert is_made_again(kept)


def test_code_that_needs_a_symbol_which_is_not_there_is_made_again(kept: Path) -> None:
    head, code = machine_code._unpacked(kept.read_bytes(), kept)
    kept.write_bytes(machine_code._packed({"needs": ["no_such_symbol"], "returns": head["returns"]}, code, kept))
    assert is_made_again(kept)


def test_code_of_another_kernel_under_this_name_is_made_again(kept: Path, tmp_path: Path) -> None:
    def tripled(x: int) -> int:
        return 3 * x

    assert kernel(tripled)(14) == 42
    (other,) = tmp_path.rglob("tripled-*.o")
    kept.write_bytes(other.read_bytes())
    assert is_made_again(kept)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_made_again(kept: Path, mode: int) -> None:
    kept.chmod(mode)
    assert is_made_again(kept)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_link_in_place_of_a_file_is_replaced(kept: Path, tmp_path: Path) -> None:
    kept.rename(tmp_path / "elsewhere.o")
    kept.symlink_to(tmp_path / "elsewhere.o")
    assert is_made_again(kept)
    assert not kept.is_symlink()


def test_a_pipe_in_place_of_a_file_does_not_stop_the_start(kept: Path) -> None:
    kept.unlink()
    os.mkfifo(kept)
    assert is_made_again(kept)


def test_a_file_of_another_user_is_not_read(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        cache.read_private(kept)


def test_folders_inside_the_cache_that_others_may_write_are_not_filled(kept: Path) -> None:
    kept.unlink()
    kept.parent.chmod(0o777)
    assert kernel(doubled)(21) == 42
    assert not kept.exists()


@pytest.mark.parametrize(
    "setting",
    [
        "NUMBA_OPT=0",
        "NUMBA_BOUNDSCHECK=1",
        "NUMBA_CPU_NAME=generic",
        "NUMBA_CPU_FEATURES=",
        "NUMBA_OF_A_LATER_VERSION=1",
    ],
)
def test_what_changes_code_changes_its_name(kept: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    tried = kernel(doubled)
    assert machine_code._place(tried, (int,)) == kept
    name, _, value = setting.partition("=")
    monkeypatch.setenv(name, value)
    assert machine_code._place(tried, (int,)) != kept
    assert not tried.is_kept


@pytest.mark.parametrize("name", ["NUMBA_NUM_THREADS", "NUMBA_DISABLE_PERFORMANCE_WARNINGS", "NUMBA_DUMP_IR"])
def test_what_changes_no_code_leaves_its_name(kept: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert machine_code._place(kernel(doubled), (int,)) == kept


def test_numbas_own_file_changes_the_name(kept: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".numba_config.yaml").write_text("opt: 0\n")
    assert machine_code._place(kernel(doubled), (int,)) != kept


def test_code_made_with_settings_that_no_name_tells_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba.core import config

    monkeypatch.setattr(config, "LOOP_VECTORIZE", 0)
    assert kernel(doubled)(21) == 42
    assert not list(tmp_path.rglob("doubled-*.o"))
    assert config.LOOP_VECTORIZE == 0


def test_code_that_cannot_be_kept_is_run_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(machine_code, "write_private", full)
    assert kernel(doubled)(21) == 42
    assert not list(tmp_path.rglob("doubled-*.o"))


WITHOUT_NUMBA = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "llvmlite"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
"""
TRAIN = """
from quintain import Trainer
from quintain.cli.app import main

for algorithm, env in (("ppo", "CartPole-v1"), ("sac", "Pendulum-v1")):
    trainer = Trainer(algorithm, env, num_lanes=2, seed=1, writers=[], events=[])
    trainer.train(64)
    print(trainer.paths)
    trainer.close()
sys.argv = ["quintain", "train", "ppo", "native/CartPole-v1", "total_timesteps=64"]
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "setting", "reason"),
    [
        (WITHOUT_NUMBA, {}, "numba is not installed"),
        ("import sys\n", {"NUMBA_DISABLE_JIT": "1"}, "NUMBA_DISABLE_JIT is set"),
    ],
    ids=["no numba", "no jit"],
)
def test_without_a_compiler_training_takes_the_plain_path(
    tmp_path: Path, start: str, setting: dict[str, str], reason: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **setting}
    words = [sys.executable, "-c", start + TRAIN]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=tmp_path)
    *trained, _ = ended.stdout.splitlines()[:3]
    assert trained == [f"{{'acting': 'plain: {reason}', 'learning': 'plain: {reason}'}}"] * 2, ended
    assert f"error[E0242]: env native/CartPole-v1 is compiled, and {reason}" in ended.stderr + ended.stdout
    assert ended.returncode == 2
