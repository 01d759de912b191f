from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from quintain.services.checkpoints import manager as checkpoints
from quintain.services.checkpoints.manager import CheckpointManager
from tests.services.samples import (
    committed,
    flip_bit,
    names_in,
    never,
    state_at,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("moment", ["before", "half"])
def test_a_kill_at_any_call_leaves_the_old_or_the_new_checkpoint(tmp_path: Path, kill_at, moment: str) -> None:
    start = tmp_path / "start"
    committed(start, 1, 2, keep=2)
    digests = {step: checkpoints.digest_of(state_at(step)) for step in (1, 2, 3, 4)}
    steps_seen = set()
    for fatal_call in range(1, 1000):
        directory = tmp_path / f"at-{fatal_call}"
        shutil.copytree(start, directory)
        manager = CheckpointManager(directory, keep=2)
        was_killed = kill_at(lambda m=manager: m.commit(state_at(3), step=3, about={}), fatal_call, moment)

        entries = manager.entries()
        assert all(entry.valid for entry in entries), entries
        assert len(entries) >= 2
        latest = manager.latest(never)
        assert checkpoints.digest(latest.path) == digests[latest.step]
        steps_seen.add(latest.step)
        assert manager.sweep() == []
        assert not [name for name in names_in(directory) if name.startswith(".")]
        after = manager.commit(state_at(4), step=4, about={})
        assert after.commit > latest.commit
        assert [entry.valid for entry in manager.entries()] == [True, True]
        shutil.rmtree(directory)
        if not was_killed:
            break
    # Three files, four renames and syncs, the read-back, the removal of the oldest: far more calls than this.
    assert fatal_call > 30
    assert steps_seen == {2, 3}


def test_a_kill_at_any_call_of_the_sweep_loses_nothing(tmp_path: Path, kill_at) -> None:
    start = tmp_path / "start"
    committed(start, 1, 2, 3)
    flip_bit(start / "000003-step-3" / "state.json", 5)
    shutil.copytree(start / "000001-step-1", start / ".trash-000000-step-0")
    shutil.copytree(start / "000001-step-1", start / ".tmp-7-1-abcd")
    for fatal_call in range(1, 1000):
        directory = tmp_path / f"at-{fatal_call}"
        shutil.copytree(start, directory)
        manager = CheckpointManager(directory, keep=2)
        was_killed = kill_at(manager.sweep, fatal_call, "before")
        assert manager.latest(lambda text: None).step == 2
        manager.sweep()
        assert names_in(directory) == [".bad-000003-step-3", "000001-step-1", "000002-step-2"]
        if not was_killed:
            break
    assert fatal_call > 10


def test_a_checkpoint_retired_while_it_is_read_is_not_called_damaged(tmp_path: Path, monkeypatch) -> None:
    manager = committed(tmp_path, 1, 2)
    seen = manager.paths()
    shutil.rmtree(seen[1])
    monkeypatch.setattr(manager, "paths", lambda: seen)
    assert [entry.step for entry in manager.entries()] == [1]
    assert manager.latest(never).step == 1


def test_a_kill_at_random_moments_of_a_busy_run_loses_nothing(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=2)
    moments = random.Random(0)
    newest = 0
    for _ in range(15):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            while True:
                newest += 1
                manager.commit(state_at(newest), step=newest, about={})
                os.write(writer, b".")
        os.read(reader, 1)
        time.sleep(moments.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
        assert all(entry.valid for entry in manager.entries())
        assert manager.sweep() == []
        latest = manager.latest(never)
        assert latest.step > newest
        assert checkpoints.digest(latest.path) == checkpoints.digest_of(state_at(latest.step))
        newest = latest.step
