from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.cli.app import main

FEW = ("--steps", "60")


def test_a_sound_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check", "tests.envs.fragile:Walk", *FEW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["ok", "creation"]
    assert any(line.split()[1] == "worker" for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_environment_ends_with_five_and_the_first_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tests.envs.zoo:WrongShape", *FEW]) == 5
    printed = capsys.readouterr()
    assert "problem  observations   the first observation has shape (2,), declared (3,) Fix: make the" in printed.out
    assert printed.err.startswith("error[E0516]: env 'tests.envs.zoo:WrongShape' has 1 problem; the first: ")


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tests.envs.zoo:RaisesLater", "--json", *FEW]) == 5
    found = json.loads(capsys.readouterr().out)
    assert (found["env"], found["ok"]) == ("tests.envs.zoo:RaisesLater", False)
    [problem] = [finding for finding in found["findings"] if finding["level"] == "problem"]
    assert problem["check"] == "step"
    assert set(problem) == {"level", "check", "what", "fix"}


def test_settings_of_the_environment_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPole-v1", "max_episode_steps=3", "--json", *FEW]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    [ends] = [finding for finding in findings if finding["check"] == "ends"]
    assert ends["what"] == "20 episodes ended, 0 of them terminated"


def test_an_unknown_environment_is_a_mistake_in_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPoel-v1"]) == 2
    assert 'did you mean "CartPole-v1"' in capsys.readouterr().err
