from __future__ import annotations

import json
import re
import sys
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
    assert "problem  observations   the first observation has shape (2,), declared (3,)\n" in printed.out
    assert "\n                        fix: make the observation and observation_space agree\n" in printed.out
    assert printed.err.startswith("error[E0516]: env 'tests.envs.zoo:WrongShape' has 1 problem; the first: ")


def test_remarks_are_counted_and_the_next_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tests.envs.zoo:Wanders", "num_lanes=2", *FEW]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("no problems, 1 warning")
    assert last.endswith(". Train in it with: quintain train ppo tests.envs.zoo:Wanders num_lanes=2")


def test_lines_are_folded_to_the_width_of_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["check", "tests.envs.zoo:Lopsided", *FEW]) == 0
    findings = [re.sub(r"\x1b\[\d*m", "", line) for line in capsys.readouterr().out.splitlines()[:-1]]
    assert max(map(len, findings)) <= 70
    assert any(line.startswith(" " * 29) for line in findings)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tests.envs.zoo:Lopsidid", 'tests.envs.zoo has no "Lopsidid"; did you mean "Lopsided"?'),
        ("no_such_module:Env", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("odd_syntax:Env", "SyntaxError: '(' was never closed (odd_syntax.py, line 1)"),
        ("odd_import:Env", "NameError: name 'nothing' is not defined ({folder}/odd_import.py:2)"),
        ("odd_exit:Env", "SystemExit: no licence ({folder}/odd_exit.py:2)"),
    ],
)
def test_what_cannot_be_imported_is_a_mistake_in_the_request(
    name: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_syntax.py").write_text("Env = (\n")
    (tmp_path / "odd_import.py").write_text("import sys\nnothing\n")
    (tmp_path / "odd_exit.py").write_text("import sys\nsys.exit('no licence')\n")
    assert main(["check", name]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    expected = words.replace("{folder}", str(tmp_path))
    assert printed.err == f'error[E0208]: cannot import env "{name}": {expected}\n'


def test_who_called_sys_exit_is_named_where_a_library_replaced_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exit(code: object) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(sys, "exit", exit)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_leave.py").write_text("import sys\nsys.exit('no licence')\n")
    assert main(["check", "odd_leave:Env"]) == 2
    assert capsys.readouterr().err.endswith(f"SystemExit: no licence ({tmp_path}/odd_leave.py:2)\n")


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


@pytest.mark.parametrize("name", ["quintain.envs.agents.tasks:gates", "agents/quintain.envs.agents.tasks:gates"])
def test_agents_are_understood(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", name, *FEW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=2) == ["ok", "creation", "an environment of agents: Gate"]
    assert [line.split()[1] for line in lines[1:-1]] == ["spaces", "step", "ends", "seeds", "exactness", "speed"]
    assert lines[-1].endswith("Train in it with: quintain train ppo agents/quintain.envs.agents.tasks:gates")


def test_faults_of_agents_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "tests.cli.silent_agents:Silent", *FEW]) == 5
    assert "problem  step           no agent wanted a decision in 60 steps" in capsys.readouterr().out
    assert main(["check", "tests.cli.silent_agents:Drifting", *FEW]) == 0
    printed = capsys.readouterr().out
    assert "warning  seeds          two environments with the same seed and actions differ" in printed
    assert "warning  scale          rewards reach 500" in printed


def test_discrete_observations_are_not_to_be_normalized(capsys: pytest.CaptureFixture[str]) -> None:
    """Taxi's observation is one of 500, which has no scale: normalize_obs would be refused."""
    assert main(["check", "Taxi-v4", *FEW]) == 0
    assert "normalize_obs" not in capsys.readouterr().out


def test_there_are_no_more_workers_to_advise_than_lanes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["num_lanes=1", "num_steps=256", "kwargs={step_seconds: 0.002}"]
    assert main(["check", "tests.envs.fragile:Walk", *words, *FEW]) == 0
    assert "num_workers" not in capsys.readouterr().out
