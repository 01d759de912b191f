"""Runs that are killed amid updates go on with the same bits: by optimizers of torch's, whole episodes, and memory."""

from __future__ import annotations

import signal

import pytest

from tests.algorithms.two_optimizers import FOUR
from tests.resume.fates import Fate
from tests.resume.nursery import Nursery
from tests.resume.outcome import digest_of, rows_of

TRANSFORMER = (
    "memory={cell: transformer, size: 8, window: 20, context_length: 5, burn_in: 2}", "batch_size=12", "num_epochs=2",
)  # fmt: skip

DECOUPLED = ("max_staleness=1", "stale_correction=decoupled", "batch_size=16", "num_epochs=2", "learning_rate=0.02")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "num_steps", "options", "fates"),
    [
        # Four calls in an update: the 22nd is the second of the sixth, one update after a checkpoint.
        pytest.param(FOUR, 8, (), (Fate("update", 22), Fate("update", 11)), id="four"),
        # Episodes begin with the rollout. From the checkpoint after two updates, 35 steps are amid the second rollout.
        pytest.param("reinforce", 24, (), (Fate("update", 4), Fate("collect", 35)), id="reinforce"),
        # A window that is longer than a rollout, so that it was seen before the checkpoint.
        # One version behind, with weights for it.
        pytest.param("ppo", 16, DECOUPLED, (Fate("update", 5), Fate("collect", 40)), id="decoupled"),
        pytest.param("ppo", 12, TRANSFORMER, (Fate("collect", 55), Fate("update", 9)), id="transformer"),
    ],
)
def test_runs_that_were_killed_go_on_exactly(
    nursery: Nursery, algorithm: str, num_steps: int, options: tuple[str, ...], fates: tuple[Fate, ...]
) -> None:
    settings = (
        "num_lanes=2", f"num_steps={num_steps}", "hidden_sizes=[8]", "budget.env_steps=192", "--quiet",
        "checkpoint.every_updates=2", "experiment.behaviors.default.events=[]", *options,
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
    assert len(rows_of(whole)) == {8: 12, 12: 8, 16: 6, 24: 5}[num_steps]
