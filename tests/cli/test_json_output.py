"""With --json, standard output is one document that a script can parse, also when the command fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import FAST, Command

TRAIN = ("train", "ppo", "CartPole-v1", *FAST)


def test_train_and_resume(quintain: Command) -> None:
    started = quintain(*TRAIN, "--run-id", "a", "--json")
    assert started.exit_code == 0
    assert started.out.count("\n") == 1
    summary = started.json
    assert (summary["run"], summary["state"], summary["env_steps"]) == ("a", "finished", 96)
    assert summary["directory"] == "runs/a"
    assert "CartPole-v1" in started.err  # what people read goes beside it
    resumed = quintain("resume", "a", "total_timesteps=128", "--json")
    assert resumed.exit_code == 0
    assert (resumed.json["env_steps"], resumed.json["last_checkpoint"][-9:]) == (128, "-step-128")
    assert resumed.json["digest"] == quintain("checkpoints", "digest", "a", "--json").json["digest"]
    assert resumed.json["digest"] != summary["digest"]


def test_train_quietly(quintain: Command) -> None:
    answer = quintain(*TRAIN, "--run-id", "a", "--json", "--quiet")
    assert answer.json["run"] == "a"
    assert answer.err == ""


def test_eval(quintain: Command, trained: Path) -> None:
    answer = quintain("eval", "a1", "--episodes", "3", "--json")
    assert answer.exit_code == 0
    found = answer.json
    assert (found["run"], found["episodes"], len(found["returns"])) == ("a1", 3, 3)
    assert found["mean_return"] == pytest.approx(sum(found["returns"]) / 3)


def test_checkpoints(quintain: Command, trained: Path) -> None:
    listed = quintain("checkpoints", "list", "a1", "--json").json
    assert [(entry["step"], entry["valid"]) for entry in listed] == [(0, True), (32, True), (64, True), (96, True)]
    assert quintain("checkpoints", "verify", "a1", "--json").json == listed


def test_validate(quintain: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("experiment: 3\n")
    answer = quintain("validate", "--jsonl", "bad.yaml", str(trained / "config.yaml"))
    assert (answer.exit_code, answer.err) == (2, "")
    rows = [json.loads(line) for line in answer.out.splitlines()]
    assert [(row["ok"], bool(row["errors"])) for row in rows] == [(False, True), (True, False)]
    assert quintain("validate", "--json", "bad.yaml", str(trained / "config.yaml")).json == rows


def test_config_and_list(quintain: Command) -> None:
    shown = quintain("config", "show", "ppo", "CartPole-v1", "num_envs=4", "--json")
    assert (shown.exit_code, shown.err) == (0, "")
    assert shown.json["settings"]["experiment"]["env"]["num_lanes"] == 4
    assert shown.json["origins"]["experiment.env.num_lanes"] == "override"
    assert quintain("config", "schema", "--json").json["type"] == "object"
    names = {(row["kind"], row["name"]) for row in quintain("list", "--json").json}
    assert {("algorithm", "ppo"), ("env", "gym")} <= names


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (("train", "pppo", "CartPole-v1", "--json"), 2),
        (("train", "ppo", "NoSuchEnv-v0", "--json"), 2),
        (("resume", "none", "--json"), 3),
        (("eval", "none", "--json"), 3),
        (("checkpoints", "list", "none", "--json"), 3),
        (("config", "show", "ppo", "CartPole-v1", "x=1", "--json"), 2),
        (("list", "colours", "--json"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_an_error_is_json_too(quintain: Command, words: tuple[str, ...], exit_code: int) -> None:
    answer = quintain(*words)
    assert answer.exit_code == exit_code
    error = answer.json["error"]
    assert error["exit_code"] == exit_code
    assert answer.error == f"error[{error['code']}]: {error['message']}"
