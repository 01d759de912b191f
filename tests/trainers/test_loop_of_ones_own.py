"""A loop without policy, environment and lanes: run, killed, resumed and digested by the command line's machinery."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COUNTER = """
import os, signal
from quintain.core.state import KeepsState
from quintain.trainers import Loop, LoopSettings

class CounterSettings(LoopSettings):
    dies_at: int = -1

class Tally(KeepsState):
    def __init__(self):
        self.total, self.has_waited = 0, False

class Counter(Loop):
    stages = ("count", "rest")
    training_parts = (*Loop.training_parts, "tally")
    commits_after_stages = True
    settings_class = CounterSettings

    def __init__(self, settings, rng):
        self.settings, self.rng, self.tally = settings, rng, Tally()

    def _stage_count(self):
        drawn = int(self.rng.generator("draw", self.progress.updates).integers(1000))
        self.tally.total = (self.tally.total * 31 + drawn) % 1_000_003
        return True

    def _stage_rest(self):
        if self.progress.updates == self.settings.dies_at and os.environ.get("DIES"):
            os.kill(os.getpid(), signal.SIGKILL)
        if not self.tally.has_waited:
            self.tally.has_waited = True
            return False
        return True

    def report(self):
        return {"count/total": float(self.tally.total)}
"""


def quintain(folder: Path, *words: str, dies: bool = False) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(folder), **({"DIES": "1"} if dies else {})}
    command = [sys.executable, "-m", "quintain", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("counting")
    (made / "counting.py").write_text(COUNTER)
    loop = {"type": "counting:Counter", "dies_at": 3}
    (made / "count.json").write_text(json.dumps({"experiment": {"loop": loop, "budget": {"updates": 6}}}))
    return made


def ended(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_loop_that_was_killed_ends_with_the_digest_of_one_that_was_not(folder: Path) -> None:
    whole = ended(quintain(folder, "train", "count.json", "--run-id", "whole", "--json"))
    killed = quintain(folder, "train", "count.json", "--run-id", "killed", "--json", dies=True)
    assert killed.returncode == -signal.SIGKILL
    resumed = ended(quintain(folder, "resume", "killed", "--json"))
    assert resumed["digest"] == whole["digest"] is not None
    rows = [
        [
            json.loads(line)["count/total"]
            for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
        ]
        for name in ("whole", "killed")
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 6
    listed = quintain(folder, "checkpoints", "list", "killed")
    assert listed.returncode == 0, listed.stderr
    for words in (["eval", "killed"], ["export", "killed"]):
        refused = quintain(folder, *words)
        assert refused.returncode != 0
        assert "has no policy" in refused.stderr
        assert "Traceback" not in refused.stderr
