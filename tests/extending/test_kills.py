"""A signal that learns and an auxiliary loss lose nothing when their run is killed inside an update."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.extending.test_bc import with_losses
from tests.extending.test_rnd import settings
from tests.resume.fates import Fate
from tests.resume.nursery import Nursery
from tests.resume.outcome import assert_every_checkpoint_is_sound, digest_of, rows_of


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.close()


@pytest.mark.slow
def test_kills_inside_updates_change_no_number(nursery: Nursery) -> None:
    path = nursery.folder / "demonstrations.npz"
    np.savez(path, observations=np.ones((5, 4), np.float32), actions=np.array([0, 1, 0, 1, 1]))
    cloning = {"type": "examples.extending.bc:Cloning", "path": str(path)}
    run_file = with_losses(settings(num_updates=8), cloning=cloning)
    for key, value in (("every_updates", 1), ("every_seconds", None)):
        run_file = run_file.replace(f"run.checkpoint.{key}", value)
    (nursery.folder / "run.yaml").write_text(run_file.to_yaml())
    found = {}
    for run, fates in (("alone", []), ("struck", [Fate("update", 8), Fate("update", 5), Fate("between stages", 6)])):
        words: tuple[str, ...] = ("train", "run.yaml", "--run-id", run, "--quiet")
        directory: Path = nursery.folder / "runs" / run
        for fate in fates:
            # Each update has two steps of the policy's optimizer and one of the signal's.
            status, printed = nursery.run(*words, fates=[fate])
            assert status == -signal.SIGKILL, printed
            assert_every_checkpoint_is_sound(directory)
            words = ("resume", run, "--quiet")
        status, printed = nursery.run(*words)
        assert status == 0, printed
        found[run] = (digest_of(directory), rows_of(directory))
    assert found["alone"] == found["struck"]
    assert {"train/novelty_loss", "train/cloning_loss"} <= found["alone"][1][-1].keys()
