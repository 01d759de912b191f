"""The figures that quintain is measured by: they are read from a file of their own, which stands before results."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import BENCH, Bench

ROOT = BENCH.parent


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in which the figures and the record were committed apart."""
    git(tmp_path, "init", "--quiet")
    for path in ("bench/wanted.toml", "docs/results/bench.jsonl"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("first")
        git(tmp_path, "add", path)
        git(tmp_path, "commit", "--quiet", "-m", path)
    monkeypatch.setattr(bench["commits"], "ROOT", tmp_path)
    return tmp_path


def test_the_file_is_read_as_claims(bench: Bench) -> None:
    claim = bench["wanted"].Claim
    table = """
        rounds = 3
        step_microseconds = 2.5
        pace = 0.5
        [speed.some]
        sb3 = { must = 2.0, aim = 4.0 }
        "every peer" = { must = 1.5 }
        [earlier.pace]
        until = "abc"
        was = "otherwise"
    """
    found = bench["wanted"].read(table)
    assert (found.rounds, found.step_microseconds, found.pace) == (3, 2.5, 0.5)
    assert found.claims["some"] == (claim("sb3", 2.0), claim("sb3", 4.0, is_aim=True), claim("every peer", 1.5))
    assert found.earlier["pace"].was == "otherwise"


def test_every_figure_is_of_a_workload_and_a_peer(bench: Bench) -> None:
    for name, claims in bench["wanted"].WANTED.claims.items():
        assert name in bench["workloads"].WORKLOADS
        assert {claim.against for claim in claims} <= {*bench["peers"].NAMES, "every peer"}
    assert bench["workloads"].WORKLOADS["ppo_cartpole_8"].claims[0] == bench["wanted"].Claim("sb3", 3.0)
    assert bench["workloads"].WORKLOADS["ppo_breakout_8"].claims == ()


def test_figures_that_stood_before_results_are_said_to(bench: Bench, checkout: Path) -> None:
    commit = git(checkout, "log", "-1", "--format=%h", "--", "bench/wanted.toml")
    said = bench["wanted"].standing()
    assert said.startswith(f"They were last changed in commit {commit} of ")
    assert said.endswith(", which records no results.")


def test_figures_that_are_changed_with_results_are_flagged(bench: Bench, checkout: Path) -> None:
    for path in ("bench/wanted.toml", "docs/results/bench.jsonl"):
        (checkout / path).write_text("second")
    git(checkout, "commit", "--quiet", "--all", "-m", "both")
    assert bench["wanted"].standing().endswith(", **which also changes docs/results/bench.jsonl**.")


def test_no_page_is_written_while_figures_are_not_committed(bench: Bench, checkout: Path, tmp_path: Path) -> None:
    (checkout / "bench" / "wanted.toml").write_text("second")
    results = bench["results"].Results(tmp_path / "bench.jsonl")
    with pytest.raises(SystemExit, match=r"bench/wanted\.toml has changes that are not committed"):
        bench["report"].write(results, tmp_path / "pages")
    assert not (tmp_path / "pages").exists()


def test_the_measured_commit_is_that_of_the_code(bench: Bench, checkout: Path) -> None:
    measured: Any = bench["commits"].measured
    code = git(checkout, "log", "-1", "--format=%h", "--", "bench")
    # A later commit that records results is not the code's.
    assert measured("bench") == code != git(checkout, "log", "-1", "--format=%h")
    (checkout / "bench" / "wanted.toml").write_text("second")
    assert measured("bench") == f"{code}+changes"
    assert measured("elsewhere") == "unknown"


def test_commits_that_a_rewritten_history_lost_are_named(bench: Bench, checkout: Path) -> None:
    commits = bench["commits"]
    known = git(checkout, "log", "-1", "--format=%h", "--abbrev=7")
    assert commits.not_in_history([known, f"{known}+changes", "abc1234", "unknown", "abc1234"]) == ["abc1234"]
    assert commits.note_on_lost([known]) == ""
    assert commits.note_on_lost(["abc1234"]).endswith("measured: abc1234. Their code cannot be looked at.")


def test_a_history_that_was_cut_off_loses_nothing(bench: Bench, checkout: Path, tmp_path: Path, monkeypatch) -> None:
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{checkout}", str(tmp_path / "shallow"))
    monkeypatch.setattr(bench["commits"], "ROOT", tmp_path / "shallow")
    assert bench["commits"].not_in_history(["abc1234"]) == []


def test_no_commit_changes_figures_and_results(bench: Bench) -> None:
    wanted = bench["wanted"]
    # A commit without a parent is where a history begins or was cut off; it has all files.
    found = bench["commits"].git("log", "--min-parents=1", "--max-parents=1", "--format=%h", "--", wanted.FILE)
    for commit in found.split():
        assert not set(wanted.changed_paths(commit)) & set(wanted.RECORDS), commit
