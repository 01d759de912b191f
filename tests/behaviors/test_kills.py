"""A killed run ends with the numbers of one that was not: of two behaviours, of groups, of a policy that remembers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.runs.launch import checkpoint_of
from quintain.services.checkpoints.catalog import load
from tests import warm
from tests.behaviors.runs import poca_file, run_file
from tests.behaviors.test_sac_memory import recurrent_file
from tests.behaviors.test_threads import threaded


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "quintain", *words, "--quiet"]
    return warm.Popen(command, cwd=folder, env=warm.ENVIRONMENT, stderr=subprocess.DEVNULL)


def digest(folder: Path, run_id: str) -> str:
    return load(checkpoint_of(folder / "runs", run_id)).manifest.digest


RUNS = {
    "two behaviours": run_file("ball_and_gates", 2000),
    "groups": poca_file(2000),
    "replay of sequences": recurrent_file("gates", 2000),
    "threads": threaded("ball_and_gates", 2000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_twice_it_ends_with_the_same_numbers(name: str, tmp_path: Path) -> None:
    settings = RUNS[name].replace("run.checkpoint.every_updates", 1)
    allow = ("--allow", str(settings.experiment.env.id))  # type: ignore[attr-defined]  # it is one of agents
    settings.save(tmp_path / "run.yaml")
    assert start(tmp_path, "train", "run.yaml", "--run-id", "whole").wait(timeout=120) == 0
    process = start(tmp_path, "train", "run.yaml", "--run-id", "struck")
    for _ in range(2):
        kill_after_checkpoint(process, tmp_path / "runs" / "struck" / "checkpoints")
        process = start(tmp_path, "resume", "struck", *allow)
    assert process.wait(timeout=120) == 0
    assert digest(tmp_path, "struck") == digest(tmp_path, "whole")


def kill_after_checkpoint(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Kills the process a moment after it has committed some checkpoints of its own."""
    begun = newest(folder)
    deadline = time.monotonic() + 60.0
    while newest(folder) < begun + 3 and process.poll() is None:
        assert time.monotonic() < deadline, "no checkpoint was committed"
        time.sleep(0.01)
    assert process.poll() is None, "it finished before it was struck"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)


def newest(folder: Path) -> int:
    return max((int(path.name[:6]) for path in folder.glob("0*")), default=0)
