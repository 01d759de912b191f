"""Runs that are killed amid updates go on with the same bits: by optimizers of torch's, and by whole episodes."""

from __future__ import annotations

import signal

import pytest

from tests.algorithms.two_optimizers import FOUR
from tests.resume.fates import Fate
from tests.resume.nursery import Nursery
from tests.resume.outcome import digest_of, rows_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "num_steps", "fates"),
    [
        # Four calls in an update: the 22nd is the second of the sixth, one update after a checkpoint.
        pytest.param(FOUR, 8, (Fate("update", 22), Fate("update", 11)), id="four"),
        # Episodes begin with the rollout. From the checkpoint after two updates, 35 steps are amid the second rollout.
        pytest.param("reinforce", 24, (Fate("update", 4), Fate("collect", 35)), id="reinforce"),
    ],
)
def test_runs_that_were_killed_go_on_exactly(
    nursery: Nursery, algorithm: str, num_steps: int, fates: tuple[Fate, ...]
) -> None:
    settings = (
        "num_lanes=2", f"num_steps={num_steps}", "hidden_sizes=[8]", "budget.env_steps=192", "--quiet",
        "checkpoint.every_updates=2", "experiment.behaviors.default.events=[]",
    )  # fmt: skip
    whole, killed = (nursery.folder / "runs" / f"{name}-{num_steps}" for name in ("whole", "killed"))
    status, printed = nursery.run("train", algorithm, "CartPole-v1", *settings, "--run-id", whole.name)
    assert status == 0, printed
    words = ("train", algorithm, "CartPole-v1", *settings, "--run-id", killed.name)
    for fate in fates:
        status, printed = nursery.run(*words, fates=[fate])
        assert status == -signal.SIGKILL, printed
        words = ("resume", killed.name, "--quiet", "--allow", FOUR)
    status, printed = nursery.run(*words)
    assert status == 0, printed
    assert (digest_of(killed), rows_of(killed)) == (digest_of(whole), rows_of(whole))
    assert len(rows_of(whole)) == (12 if algorithm == FOUR else 5)
