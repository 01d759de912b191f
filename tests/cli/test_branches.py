"""Going back, going on after a goal, and commands that a run hints at: what they do to the run on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.cli.app import main
from quintain.runs import launch
from quintain.services.reporting.metrics_file import read_rows

SMALL = ["num_lanes=2", "num_steps=16", "batch_size=16", "num_epochs=1", "run.checkpoint.every_updates=1", "keep=20"]


def train(runs: Path, *words: str, budget: int = 128) -> None:
    command = ["train", "ppo", "CartPole-v1", f"total_timesteps={budget}", *SMALL, *words]
    assert main([*command, "--runs-dir", str(runs), "--run-id", "a", "--quiet"]) == 0


def steps(runs: Path) -> list[int]:
    return [int(row["step"]) for row in read_rows(runs / "a" / "metrics.jsonl")]


def test_going_back_is_a_new_branch_at_once(tmp_path: Path) -> None:
    train(tmp_path)
    assert steps(tmp_path) == [32, 64, 96, 128]
    launched = launch.resume(tmp_path, "a@64", quiet=True)
    launched.trainer.close()
    launched.run.close()  # as if it died before its first cycle
    assert main(["resume", "a", "--runs-dir", str(tmp_path), "--quiet"]) == 0
    assert steps(tmp_path) == [32, 64, 96, 128]


def test_a_run_that_reached_its_goal_can_be_given_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = "events=[{type: evaluate, every_env_steps: 32, num_episodes: 1}, {type: stop_at_return, mean_return: 1}]"
    train(tmp_path, events, budget=1000)
    assert steps(tmp_path) == [32]
    assert main(["resume", "a", "--runs-dir", str(tmp_path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["env_steps"] == 32
    assert not any("total_timesteps" in command for command, _ in summary["next_commands"])
    assert main(["resume", "a", "total_timesteps=2000", "--runs-dir", str(tmp_path), "--quiet"]) == 0
    assert steps(tmp_path) == [32, 64]


def test_hints_name_the_code_that_must_be_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hinted_envs.py").write_text("import gymnasium\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    command = ["train", "ppo", "hinted_envs:make", "total_timesteps=32", *SMALL, "--run-id", "a", "--json"]
    assert main(command) == 0
    hints = [command for command, _ in json.loads(capsys.readouterr().out)["next_commands"]]
    assert len(hints) == 3
    for hint in hints:
        assert main(hint.split()[1:]) == 0, hint
    # A run of one's own needs no permission, also one whose settings are signed after its first checkpoint.
    capsys.readouterr()
    assert main(["train", "--initialize-from", "a", "--run-id", "fork", "--json"]) == 0
    forked = json.loads(capsys.readouterr().out)["next_commands"]
    assert not any("--allow" in command for command, _ in [*forked, *zip(hints, hints, strict=True)])


def test_another_thread_count_has_to_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path)
    where = ["--runs-dir", str(tmp_path), "--run-id", "a"]
    file = tmp_path / "again.yaml"
    file.write_text((tmp_path / "a" / "config.yaml").read_text().replace("threads: 1", "threads: 2"))
    assert main(["train", str(file), "--resume", *where, "--quiet"]) == 2
    assert "run.threads changed 1 -> 2" in capsys.readouterr().err
    assert main(["train", str(file), "run.threads=2", "--resume", *where, "--quiet"]) == 0


def test_an_unknown_environment_is_refused_before_anything_is_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "ppo", "CartPol-v1", "--runs-dir", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert 'did you mean "CartPole-v1"?' in printed.err
