"""`quintain train config.yaml --env module:Env` does what ML-Agents' own command does with that file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.core import registry
from quintain.data.differences import differences
from quintain.runs.infer import infer
from quintain.runs.launch import checkpoint_of
from quintain.services.checkpoints.catalog import load
from quintain.settings.tree import RunFile
from tests.cli.conftest import Command

ENV = "quintain.envs.agents.tasks:ball_and_gates"
FILE = """\
default_settings:
  hyperparameters: {batch_size: 32, buffer_size: 64, num_epoch: 1}
  network_settings: {hidden_units: 8, num_layers: 1}
  time_horizon: 16
  summary_freq: 64
  max_steps: 200
behaviors:
  Ball: {}
  Gate: {max_steps: 128}
env_settings: {seed: 4}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "config.yaml").write_text(FILE)
    return "config.yaml"


def train(quintain: Command, file: str, *words: str) -> None:
    answer = quintain("train", file, "--env", ENV, "--quiet", *words)
    assert answer.exit_code == 0, answer.err


def test_a_configuration_is_trained_and_continued(quintain: Command, file: str, tmp_path: Path) -> None:
    train(quintain, file, "--run-id", "X")
    run = tmp_path / "runs" / "X"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("Ball/train/policy_loss" in row for row in rows)
    assert any("Gate/rollout/ep_rew_mean" in row for row in rows)
    answer = quintain("train", file, "--env", ENV, "--run-id", "X", "--quiet")
    assert answer.exit_code == 3, "it exists already"
    (tmp_path / "config.yaml").write_text(FILE.replace("max_steps: 200", "max_steps: 400"))
    train(quintain, file, "--run-id", "X", "--resume")
    progress = load(checkpoint_of(tmp_path / "runs", "X")).state["training"]["learners"]
    assert progress["Ball"]["progress"]["env_steps"] >= 400
    # It had spent its own budget before, and was left alone.
    assert 128 <= progress["Gate"]["progress"]["env_steps"] < 200
    train(quintain, file, "--run-id", "X", "--force")


def test_weights_of_another_run_can_be_the_first(quintain: Command, file: str, tmp_path: Path) -> None:
    train(quintain, file, "--run-id", "X")
    train(quintain, file, "--run-id", "Y", "--initialize-from", "X")
    runs = tmp_path / "runs"
    first = min((runs / "Y" / "checkpoints").glob("0*"))
    begun, ended = load(first).state["training"], load(checkpoint_of(runs, "X")).state["training"]
    assert begun["progress"]["env_steps"] == 0
    for name, learner in ended["learners"].items():
        assert not list(differences(learner["policy"], begun["learners"][name]["policy"]))


def test_equal_seeds_give_equal_runs_and_others_do_not(quintain: Command, file: str, tmp_path: Path) -> None:
    digests = []
    for run_id, words in (("a", ()), ("b", ()), ("c", ("--seed", "5")), ("d", ("--num-envs", "2"))):
        train(quintain, file, "--run-id", run_id, *words)
        digests.append(load(checkpoint_of(tmp_path / "runs", run_id)).manifest.digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_inference_changes_nothing(quintain: Command, file: str, tmp_path: Path) -> None:
    train(quintain, file, "--run-id", "X")
    run = tmp_path / "runs" / "X"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    settings = RunFile.load(run / "config.yaml")
    checkpoint = checkpoint_of(tmp_path / "runs", "X")
    assert infer(settings, checkpoint, is_deterministic=True, max_steps=30, quiet=True) == 0
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--deterministic",), "--deterministic goes with --inference"),
        (("--inference",), "--inference needs the policies of a run"),
        (("--resume", "--force"), "exclude each other"),
        (("num_lanes=3",), "a configuration of ML-Agents is changed in its file"),
    ],
)
def test_words_that_cannot_be_followed_are_refused(
    quintain: Command, file: str, words: tuple[str, ...], said: str
) -> None:
    answer = quintain("train", file, "--env", ENV, *words)
    assert answer.exit_code == 2
    assert said in answer.error


def test_options_of_agents_need_such_a_file(quintain: Command) -> None:
    answer = quintain("train", "ppo", "CartPole-v1", "--num-envs", "2")
    assert answer.exit_code == 2
    assert "--num-envs goes with a configuration of ML-Agents" in answer.error


def test_a_parameter_that_the_environment_does_not_have_is_refused(
    quintain: Command, file: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(FILE + "environment_parameters: {gravity: 9.8}\n")
    answer = quintain("train", file, "--env", ENV, "--run-id", "X")
    assert answer.exit_code == 5
    assert "there is no parameter gravity; there are push" in answer.error
    assert not (tmp_path / "runs" / "X").exists()


def test_validate_knows_such_files(quintain: Command, file: str, tmp_path: Path) -> None:
    assert quintain("validate", file).exit_code == 0
    (tmp_path / "config.yaml").write_text(FILE.replace("time_horizon", "time_horizn"))
    answer = quintain("validate", file)
    assert answer.exit_code == 2
    assert 'config.yaml:4:3: default_settings.time_horizn: unknown setting; did you mean "time_horizon"?' in answer.out


@pytest.mark.slow
def test_each_policy_is_exported_into_a_folder_of_its_own(quintain: Command, file: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    train(quintain, file, "--run-id", "X")
    answer = quintain("export", "X", "--allow", ENV)
    assert answer.exit_code == 0, answer.err
    for name in ("Ball", "Gate"):
        assert (tmp_path / "runs" / "X" / "export" / name / "policy.onnx").is_file()


def test_weights_of_other_behaviours_are_refused_with_what_they_are_for(quintain: Command, file: str) -> None:
    train(quintain, file, "--run-id", "X")
    other = "quintain.envs.agents.tasks:gates"
    answer = quintain("train", file, "--env", other, "--run-id", "Y", "--initialize-from", "X", "--quiet")
    assert answer.exit_code == 4
    assert "checkpoint is for Ball: obs Box(6)" in answer.error


def test_episodes_of_each_behaviour_are_evaluated(quintain: Command, file: str, tmp_path: Path) -> None:
    train(quintain, file, "--run-id", "X")
    words = ("eval", "X", "--allow", ENV, "--episodes", "7")
    first, again, other = (quintain(*words, "--json", "--seed", seed).json for seed in ("1", "1", "2"))
    assert set(first["behaviors"]) == {"Ball", "Gate"}
    assert len(first["behaviors"]["Gate"]["returns"]) == 7
    assert first == again
    assert first["behaviors"] != other["behaviors"]
    lines = quintain(*words).out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["Ball", "Gate"]


SIGNAL = """\
import numpy as np

from quintain.data import fields as f
from quintain.envs.agents.tasks import gates
from quintain.rewards import RewardSignal, RewardSignalSettings, register


@register("boldness_of_gates", RewardSignalSettings)
class Boldness(RewardSignal):
    def evaluate(self, rollout):
        return -rollout.array(f.LOG_PROB)[:-1]


def bold_gates(seed=0):
    return gates(seed=seed)
"""
STREAMS = """\
behaviors:
  Gate:
    hyperparameters: {batch_size: 32, buffer_size: 64, num_epoch: 1}
    network_settings: {hidden_units: 8, num_layers: 1}
    reward_signals: {extrinsic: {gamma: 0.9}, boldness_of_gates: {gamma: 0.5, strength: 0.1}}
    summary_freq: 64
    max_steps: 200
env_settings: {seed: 4, env_path: "streams_of_gates:bold_gates"}
"""


def test_a_signal_that_the_environments_module_registers_is_trained_with(
    quintain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "streams_of_gates.py").write_text(SIGNAL)
    (tmp_path / "config.yaml").write_text(STREAMS)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.yaml").write_text(STREAMS)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = {**registry._registered, "reward_signal": dict(registry._known("reward_signal"))}
    monkeypatch.setattr(registry, "_registered", known)
    answer = quintain("validate", "folder")
    assert "unknown reward signal" in answer.out, "what nobody named by itself imports nothing"
    assert quintain("validate", "config.yaml").exit_code == 0
    answer = quintain("train", "config.yaml", "--run-id", "X", "--quiet")
    assert answer.exit_code == 0, answer.err
    rows = [json.loads(line) for line in (tmp_path / "runs" / "X" / "metrics.jsonl").read_text().splitlines()]
    assert any("value/boldness_of_gates" in row and "reward/extrinsic" in row for row in rows)
    (tmp_path / "config.yaml").write_text(STREAMS.replace("max_steps: 200", "max_steps: 400"))
    answer = quintain("train", "config.yaml", "--run-id", "X", "--resume", "--quiet")
    assert answer.exit_code == 0, answer.err
    allowed = ("--allow", "streams_of_gates:bold_gates", "--allow", "streams_of_gates:Boldness")
    assert quintain("eval", "X", *allowed, "--episodes", "2").exit_code == 0
