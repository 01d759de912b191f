"""Training reaches its score, for every seed, with the settings that users are shown.

`make learning` runs these and rewrites docs/results/learning.md. LEARNING_SEEDS=10 tries that many seeds of each task.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.learning.trials import RESULTS, TASKS, Task, remember, run

pytestmark = [pytest.mark.learning, pytest.mark.timeout(1800)]


def cases() -> list[tuple[Task, int]]:
    wanted = int(os.environ.get("LEARNING_SEEDS", "0"))
    return [(task, seed) for task in TASKS.values() for seed in range(wanted or task.num_seeds)]


@pytest.fixture(scope="module", autouse=True)
def report() -> Iterator[None]:
    """Rewrites the page and the picture from what is remembered, also when a task failed."""
    yield
    subprocess.run([sys.executable, str(RESULTS / "learning_report.py")], check=True)


@pytest.mark.parametrize(("task", "seed"), cases(), ids=lambda value: getattr(value, "name", value))
def test_reaches_its_score(task: Task, seed: int, tmp_path: Path) -> None:
    outcome = run(task, seed, tmp_path)
    remember(task, outcome)
    # The best checkpoint is what `quintain eval RUN` plays.
    assert outcome.best_mean >= task.target
    if task.name.startswith("cartpole"):
        assert outcome.latest_mean >= task.target


def test_without_memory_hidden_velocities_are_too_hard(tmp_path: Path) -> None:
    blind = Task("blind", f"{TASKS['memory'].command} policy.memory=null", target=0.0, num_seeds=1)
    for seed in range(3):
        assert run(blind, seed, tmp_path / str(seed)).best_mean < 200.0
