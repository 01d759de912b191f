"""Sweeps in processes: kills, stops, failures and repetitions, and sweeps from Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import quintain
from quintain.cli.app import main
from quintain.errors import SettingsError
from tests import warm
from tests.hold import wait_for
from tests.resume.outcome import digest_of

SMALL = {
    "num_envs": 2,
    "num_steps": 16,
    "batch_size": 16,
    "num_epochs": 1,
    "total_timesteps": 128,
    "checkpoint.every_updates": 1,
    "events": [{"type": "evaluate", "every_env_steps": 64, "num_episodes": 2, "max_episode_steps": 20}],
}
NAMES = ("learning_rate-0.01-s0", "learning_rate-0.01-s1", "learning_rate-0.003-s0", "learning_rate-0.003-s1")


def write_grid(folder: Path, **changes: Any) -> Path:
    """Writes a grid over the gated environment, whose gate is the folder."""
    settings = {**SMALL, "env.kwargs": {"gate": str(folder)}}
    grid = {
        "train": "ppo tests.runs.sweeps.gated:Gated",
        "settings": settings,
        "grid": {"learning_rate": [0.01, 0.003]},
        "seeds": 2,
    }
    path = folder / "grid.json"
    path.write_text(json.dumps({**grid, **changes}))
    return path


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "quintain", "sweep", "grid.json", *words]
    pipe = subprocess.PIPE
    return warm.Popen(command, cwd=folder, env=warm.ENVIRONMENT, text=True, stdout=pipe, stderr=subprocess.STDOUT)


def held(folder: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob("held-*")]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_killed_and_a_stopped_sweep_end_as_an_unbroken_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_grid(folder)
    sweep = start(folder, "--jobs", "2")
    wait_for(lambda: len(held(folder)) == 2, sweep)
    sweep.kill()
    sweep.communicate()
    # Nothing outlives the sweep: a run that went on would hold its lock.
    wait_for(lambda: not any(map(is_alive, held(folder))))
    assert main(["sweep", "show", "grid", "--json"]) == 0
    states = {run["id"]: run["state"] for row in json.loads(capsys.readouterr().out)["rows"] for run in row["runs"]}
    assert states == dict(zip(NAMES, ["interrupted"] * 2 + ["waiting"] * 2, strict=True))

    for path in folder.glob("held-*"):
        path.unlink()
    sweep = start(folder, "--jobs", "2")
    wait_for(lambda: len(held(folder)) == 2, sweep)
    sweep.send_signal(signal.SIGINT)
    # The environment must go on for the cycle to end; the two runs that wait must not begin.
    logs = [folder / "sweeps/grid/logs" / f"{name}.log" for name in NAMES[:2]]
    wait_for(lambda: all("SIGTERM: stopping" in log.read_text() for log in logs), sweep)
    (folder / "open").touch()
    printed, _ = sweep.communicate(timeout=100)
    assert sweep.returncode == 130, printed
    assert "SIGINT: stopping after every run has saved" in printed
    assert "2 stopped, 2 waiting" in printed
    assert "continue with: quintain sweep grid.json" in printed

    assert main(["sweep", "grid.json", "--jobs", "2", "--json"]) == 0
    broken = json.loads(capsys.readouterr().out)
    assert main(["sweep", "grid.json", "--name", "whole", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert [row["mean"] for row in broken["rows"]] == [row["mean"] for row in whole["rows"]]
    assert whole["finished"] == 4
    digests = [[digest_of(folder / "sweeps" / name / "runs" / run) for run in NAMES] for name in ("grid", "whole")]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 4


@pytest.mark.slow
def test_a_run_that_fails_stops_no_other_and_is_tried_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "open").touch()
    good, bad = (
        {"env.kwargs": {"gate": str(folder), "fails": fails}, "env_workers.max_restarts": 1} for fails in (False, True)
    )
    write_grid(folder, grid={"kind": {"bad": bad, "good": good}}, seeds=1)
    assert main(["sweep", "grid.json"]) == 5
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("[1/2] kind-bad-s0  failed  error[E0")]
    assert "this combination breaks" in line
    assert any(line.startswith("[2/2] kind-good-s0  finished  eval/mean_reward ") for line in lines)
    assert any(line.startswith("failed   kind-bad-s0: error[E0") for line in lines)
    good_run = folder / "sweeps/grid/runs/kind-good-s0"
    before = digest_of(good_run), (good_run / "status.json").stat().st_mtime_ns
    # Settings with which a run was not begun are refused, before anything starts.
    write_grid(folder, grid={"kind": {"bad": good, "good": good}}, seeds=1, settings={**SMALL, "gamma": 0.5})
    capsys.readouterr()
    assert main(["sweep", "grid.json"]) == 2
    write_grid(folder, grid={"kind": {"good": good}}, seeds=1, settings={**SMALL, "gamma": 0.5})
    assert main(["sweep", "grid.json"]) == 2
    assert "gamma changed 0.99 -> 0.5 since run kind-good-s0" in capsys.readouterr().err
    # Tried again, it fails again; the finished one is not touched.
    write_grid(folder, grid={"kind": {"bad": bad, "good": good}}, seeds=1)
    assert main(["sweep", "grid.json"]) == 5
    assert "1 run of 2 finished before" in capsys.readouterr().out
    assert (digest_of(good_run), (good_run / "status.json").stat().st_mtime_ns) == before


@pytest.mark.slow
def test_python_sweeps_over_parts_of_the_script_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = """
import quintain
from quintain.policies import ActorCritic, ActorCriticSettings

@quintain.register("policy", "mine")
class Mine(ActorCritic):
    settings_class = ActorCriticSettings

base = quintain.RunFile.from_names("ppo", "CartPole-v1", "policy.type=mine")
settings = dict(num_envs=2, num_steps=16, batch_size=16, num_epochs=1, total_timesteps=64)
table = quintain.sweep(base, {"hidden_sizes": [[8], [16, 16]]}, settings=settings, seeds=[4], jobs=2, name="py")
print([(row.combination, row.num_finished) for row in table.rows], [run.failure for run in table.runs])
"""
    (folder / "script.py").write_text(script)
    answer = warm.run([sys.executable, "script.py"], cwd=folder, env=warm.ENVIRONMENT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "[({'hidden_sizes': [8]}, 1), ({'hidden_sizes': [16, 16]}, 1)] ['', '']" in answer.stdout or (
        "[({'hidden_sizes': [16, 16]}, 1), ({'hidden_sizes': [8]}, 1)] ['', '']" in answer.stdout
    ), answer.stdout
    (first, second) = sorted((folder / "sweeps/py/runs").iterdir())
    assert "  seed: 4 " in (first / "config.yaml").read_text()
    assert digest_of(first) != digest_of(second)


def test_python_gets_the_sentences_of_the_command_line(folder: Path) -> None:
    with pytest.raises(SettingsError, match='learning_rte=1: no setting is called "learning_rte"'):
        quintain.sweep("ppo CartPole-v1", {"learning_rte": [1, 2]})
    with pytest.raises(SettingsError, match="the grid is empty"):
        quintain.sweep("ppo CartPole-v1")
    with pytest.raises(SettingsError, match=r"sweep\(\): jobs: "):
        quintain.sweep("ppo CartPole-v1", seeds=2, jobs=0)
    assert not list(folder.iterdir())


def test_more_jobs_than_cores_are_a_note(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "open").touch()
    write_grid(folder, grid={}, seeds=1)
    assert main(["sweep", "grid.json", "--jobs", "999"]) == 0
    cores = len(os.sched_getaffinity(0))
    printed = capsys.readouterr().out
    assert f"note: 999 runs at a time share {cores} core" in printed
    assert "sweep grid: 1 run (1 combination, 1 seed), 999 at a time, in sweeps/grid" in printed
    # Of one run, the stored settings say where each value comes from.
    text = (folder / "sweeps/grid/runs/s0/config.yaml").read_text()
    assert "num_steps: 16" in text
    assert "# override" in text
