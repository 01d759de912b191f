"""Runs whose collector works beside the learner: killed or stopped anywhere, they end with the same numbers."""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import cycle
from pathlib import Path

import pytest

from tests.hold import Hold, wait_for
from tests.resume.outcome import assert_every_checkpoint_is_sound, digest_of, rows_of
from tests.resume.test_workers import command, descendants, is_alive, kill_after_checkpoint, newest_checkpoint, run

ENV = "tests.envs.fragile:Walk"
SETTINGS = (
    "num_lanes=2", "num_steps=32", "batch_size=32", "num_epochs=2", "normalize_obs=true", "budget.env_steps=1500",
    "checkpoint.every_updates=3", "checkpoint.every_seconds=null",
    'experiment.behaviors.default.events=[{"type": "evaluate", "every_env_steps": 700, "num_episodes": 2}]',
)  # fmt: skip
LAST_HOLD = 20
"""After which of its 24 rows a run waits at the latest for what a test does to it."""
PLACED = [("local", 1), ("threads", 0), ("threads", 1), ("processes", 0), ("processes", 1)]


def words_of(run_id: str, placement: str, max_staleness: int) -> tuple[str, ...]:
    where = (f"placement={placement}", f"max_staleness={max_staleness}")
    return ("train", "ppo", ENV, *SETTINGS, *where, "--run-id", run_id)


def resume(run_id: str, *more: str) -> tuple[str, ...]:
    return ("resume", run_id, *more, "--allow", ENV)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs each staleness undisturbed: 0 by the learner itself, 1 in a thread."""
    folder = tmp_path_factory.mktemp("undisturbed")
    found = {}
    for max_staleness, placement in ((0, "local"), (1, "threads")):
        status, printed = run(folder, *words_of(placement, placement, max_staleness))
        assert status == 0, printed
        found[max_staleness] = folder / "runs" / placement
    return found


def assert_same(directory: Path, reference: Path) -> None:
    assert digest_of(directory) == digest_of(reference)
    without = [{k: v for k, v in row.items() if k != "rollout/staleness"} for row in rows_of(directory)]
    expected = [{k: v for k, v in row.items() if k != "rollout/staleness"} for row in rows_of(reference)]
    assert without == expected


@pytest.mark.slow
@pytest.mark.parametrize(("placement", "max_staleness"), PLACED)
def test_kills_of_the_learner_change_no_number_and_leave_nobody(
    tmp_path: Path, references: dict[int, Path], placement: str, max_staleness: int
) -> None:
    chance = random.Random(f"{placement} {max_staleness}")
    directory = tmp_path / "runs" / "killed"
    words = words_of("killed", placement, max_staleness)
    for _ in range(3):
        kill_after_checkpoint(tmp_path, words, directory, chance.uniform(0.0, 0.2), row=LAST_HOLD)
        words = resume("killed")
    status, printed = run(tmp_path, *resume("killed"))
    assert status == 0, printed
    assert_same(directory, references[max_staleness])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "max_staleness", "number"),
    [(*placed, number) for placed, number in zip(PLACED, cycle((signal.SIGTERM, signal.SIGINT)), strict=False)],
)
def test_a_signal_stops_after_a_checkpoint_and_changes_no_number(
    tmp_path: Path, references: dict[int, Path], placement: str, max_staleness: int, number: signal.Signals
) -> None:
    directory = tmp_path / "runs" / "stopped"
    hold = Hold(tmp_path, LAST_HOLD)
    process = command(tmp_path, *words_of("stopped", placement, max_staleness), hold=hold)
    wait_for(lambda: newest_checkpoint(directory) != "", process)
    before = newest_checkpoint(directory)
    below = descendants(process.pid)
    # As a terminal, or a job scheduler, tells everyone.
    for pid in (*below, process.pid):
        os.kill(pid, number)
    hold.let_go()
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 128 + number, printed
    assert newest_checkpoint(directory) > before
    assert not any(map(is_alive, below))
    status, printed = run(tmp_path, *resume("stopped"))
    assert status == 0, printed
    assert_same(directory, references[max_staleness])


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_killed_collector_ends_the_run_which_resumes_exactly(
    tmp_path: Path, references: dict[int, Path], max_staleness: int
) -> None:
    directory = tmp_path / "runs" / "lost"
    hold = Hold(tmp_path, LAST_HOLD)
    process = command(tmp_path, *words_of("lost", "processes", max_staleness), hold=hold)
    wait_for(lambda: newest_checkpoint(directory) != "", process)
    server, collector = descendants(process.pid)
    os.kill(collector, signal.SIGKILL)
    hold.let_go()
    struck = time.monotonic()
    _, printed = process.communicate(timeout=60)
    assert time.monotonic() - struck < 10
    assert process.returncode == 5
    assert "error[E0540]: the collector's process was killed by SIGKILL" in printed
    assert not is_alive(server)
    assert_every_checkpoint_is_sound(directory)
    status, printed = run(tmp_path, *resume("lost"))
    assert status == 0, printed
    assert_same(directory, references[max_staleness])


@pytest.mark.slow
def test_a_run_may_move_to_another_placement(tmp_path: Path, references: dict[int, Path]) -> None:
    directory = tmp_path / "runs" / "moved"
    words = words_of("moved", "local", 0)
    for placement, row in (("threads", 8), ("processes", 16)):
        hold = Hold(tmp_path, row)
        process = command(tmp_path, *words, hold=hold)
        hold.wait(process, row)
        process.terminate()
        hold.let_go()
        _, printed = process.communicate(timeout=60)
        assert process.returncode == 143, printed
        words = resume("moved", f"run.placement={placement}")
    status, printed = run(tmp_path, *words)
    assert status == 0, printed
    assert_same(directory, references[0])


@pytest.mark.slow
def test_ranks_have_collectors_of_their_own(tmp_path: Path) -> None:
    outcomes = {}
    for placement in ("local", "threads", "processes"):
        status, printed = run(tmp_path, *words_of(placement, placement, 0), "budget.env_steps=500", "num_ranks=2")
        assert status == 0, printed
        outcomes[placement] = digest_of(tmp_path / "runs" / placement)
    assert len(set(outcomes.values())) == 1
