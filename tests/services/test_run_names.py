from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from quintain.errors import RunDirectoryError
from quintain.services.files import run_names
from quintain.services.files.run_names import check_run_id, default_run_id, resolve_run, split_checkpoint_suffix


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, modified in {"cart-1": 10, "cart-2": 30, "pong-1": 20, "cart-2.old-20250101T0": 40}.items():
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        status = tmp_path / name / "status.json"
        status.write_text("{}")
        os.utime(status, (modified, modified))
    return tmp_path


class TestResolve:
    @pytest.mark.parametrize(
        ("text", "found"),
        [("cart-1", "cart-1"), ("pong", "pong-1"), ("p", "pong-1"), ("cart-2", "cart-2"), ("latest", "cart-2")],
    )
    def test_by_name(self, runs: Path, text: str, found: str) -> None:
        assert resolve_run(runs, text) == runs / found

    def test_by_path(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert resolve_run(Path("elsewhere"), str(runs / "cart-1")) == runs / "cart-1"
        monkeypatch.chdir(runs)
        assert resolve_run(Path("elsewhere"), "cart-1") == Path("cart-1")

    def test_ambiguous_lists_the_candidates(self, runs: Path) -> None:
        with pytest.raises(RunDirectoryError, match=r"'cart' begins 2 runs in .*: cart-1, cart-2\.") as caught:
            resolve_run(runs, "cart")
        assert (caught.value.code, caught.value.exit_code) == ("E0304", 3)

    def test_unknown_offers_the_nearest(self, runs: Path) -> None:
        with pytest.raises(RunDirectoryError, match=r"no run 'pnog-1' in .* Did you mean pong-1\?"):
            resolve_run(runs, "pnog-1")

    def test_what_can_be_no_checkpoint_of_a_run_is_named(self, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(runs.parent)
        for text in ("pong-1@newest", f"{runs.name}/pong-1@newest"):
            with pytest.raises(RunDirectoryError, match=rf"'{text}': found checkpoint 'newest', expected latest, best"):
                resolve_run(runs, text)
        with pytest.raises(RunDirectoryError, match="no run 'pnog-1@newest'"):
            resolve_run(runs, "pnog-1@newest")

    @pytest.mark.parametrize(("text", "code"), [("latest", "E0303"), ("a1", "E0304"), ("no/where", "E0304")])
    def test_nothing_there(self, tmp_path: Path, text: str, code: str) -> None:
        for directory in (tmp_path, tmp_path / "gone"):
            with pytest.raises(RunDirectoryError) as caught:
                resolve_run(directory, text)
            assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a1", ("a1", None)),
        ("a1@best", ("a1", "best")),
        ("runs/a1@latest", ("runs/a1", "latest")),
        ("a1@8192", ("a1", "8192")),
        ("a1@000012-step-8192", ("a1", "000012-step-8192")),
        ("user@host", ("user@host", None)),
        ("me@home/a1", ("me@home/a1", None)),
        ("@best", ("@best", None)),
    ],
)
def test_split_checkpoint_suffix(text: str, parts: tuple[str, str | None]) -> None:
    assert split_checkpoint_suffix(text) == parts


class TestDefaultId:
    @pytest.mark.parametrize(
        ("env", "start"),
        [
            ("CartPole-v1", "cartpole-ppo-"),
            ("ALE/Pong-v5", "pong-ppo-"),
            ("my_package.envs:Maze-v0", "maze-ppo-"),
            ("../../x", "x-ppo-"),
            ("é" * 99, "ppo-"),
        ],
    )
    def test_is_readable_and_valid(self, tmp_path: Path, env: str, start: str) -> None:
        run_id = default_run_id(env, "ppo", runs_dir=tmp_path)
        assert re.fullmatch(rf"{start}\d{{4}}-[a-z]+", run_id)
        assert check_run_id(run_id) == run_id

    def test_is_not_in_use(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run_names, "_WORDS", "cat dog")
        seen = set()
        for _ in range(3):
            run_id = default_run_id("CartPole-v1", "ppo", runs_dir=tmp_path)
            assert run_id not in seen
            seen.add(run_id)
            (tmp_path / run_id).mkdir()

    def test_there_are_enough_different_words(self) -> None:
        words = run_names._WORDS.split()
        assert len(words) == len(set(words)) == 64
        assert max(map(len, words)) <= 6
