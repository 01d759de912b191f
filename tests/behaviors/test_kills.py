"""A killed run ends with the numbers of one that was not: of two behaviours, of groups, of a policy that remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.runs.launch import checkpoint_of
from quintain.services.checkpoints.catalog import load
from tests.behaviors.runs import poca_file, run_file
from tests.behaviors.test_sac_memory import recurrent_file
from tests.behaviors.test_threads import threaded
from tests.resume.outcome import rows_of
from tests.resume.test_workers import kill_after_checkpoint, run


def digest(folder: Path, run_id: str) -> str:
    return load(checkpoint_of(folder / "runs", run_id)).manifest.digest


LAST_HOLD = 7
RUNS = {
    "two behaviours": run_file("ball_and_gates", 1200),
    "groups": poca_file(1200),
    "replay of sequences": recurrent_file("gates", 1200),
    "threads": threaded("ball_and_gates", 1200),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_twice_it_ends_with_the_same_numbers(name: str, tmp_path: Path) -> None:
    settings = RUNS[name].replace("run.checkpoint.every_updates", 1).replace("run.report.every_updates", 1)
    allow = ("--allow", str(settings.experiment.env.id))  # type: ignore[attr-defined]  # it is one of agents
    settings.save(tmp_path / "run.yaml")
    status, printed = run(tmp_path, "train", "run.yaml", "--run-id", "whole")
    assert status == 0, printed
    assert len(rows_of(tmp_path / "runs" / "whole")) > LAST_HOLD, "or it would not be held"
    words = ("train", "run.yaml", "--run-id", "struck")
    for _ in range(2):
        kill_after_checkpoint(tmp_path, words, tmp_path / "runs" / "struck", 0.0, num_commits=3, row=LAST_HOLD)
        words = ("resume", "struck", *allow)
    status, printed = run(tmp_path, *words)
    assert status == 0, printed
    assert digest(tmp_path, "struck") == digest(tmp_path, "whole")
