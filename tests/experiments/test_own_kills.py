"""Trainers of users' own that are killed with SIGKILL end as those that were not; hashing of text changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quintain.services.checkpoints.catalog import load
from quintain.services.checkpoints.state_files import digest_of
from tests import warm
from tests.hold import wait_for

MODULE = ("-m", "tests.experiments.killed_run")
TRAINERS = ("own_clip", "own_train", "own_logged")


def outcome(run: Path) -> tuple[str, list[Any]]:
    """Returns the digest of what was trained, and the losses in all rows."""
    newest = max((run / "checkpoints").glob("*-step-*"), key=lambda each: each.name)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [{key: value for key, value in row.items() if key.startswith(("train/", "test/"))} for row in rows]
    return digest_of(load(newest).state), losses


@pytest.mark.slow
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_killed_experiment_ends_as_one_that_was_not(trainer: str, tmp_path: Path) -> None:
    words = [sys.executable, *MODULE, trainer]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "env": warm.ENVIRONMENT, "cwd": tmp_path}
    assert warm.run([*words, "whole", str(tmp_path)], **quiet).returncode == 0
    held = tmp_path / "held"
    process = warm.Popen([*words, "killed", str(tmp_path), "3", str(held)], **quiet)
    wait_for(held.exists, process)
    process.kill()
    process.wait()
    assert warm.run([*words, "killed", str(tmp_path)], **quiet).returncode == 0
    whole, killed = outcome(tmp_path / "whole"), outcome(tmp_path / "killed")
    assert whole == killed
    assert len(whole[1]) >= 6


@pytest.mark.slow
def test_hashes_of_text_change_nothing(tmp_path: Path) -> None:
    for seed in ("0", "1"):
        words = [sys.executable, *MODULE, "own_clip", f"hashed-{seed}", str(tmp_path)]
        environment = {**warm.ENVIRONMENT, "PYTHONHASHSEED": seed}
        subprocess.run(words, check=True, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL)
    assert outcome(tmp_path / "hashed-0") == outcome(tmp_path / "hashed-1")
