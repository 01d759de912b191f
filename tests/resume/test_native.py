"""A run with a native environment survives kills in the middle of episodes, and reports what Gymnasium's run does."""

from __future__ import annotations

import signal

import pytest

from tests.resume.fates import Fate
from tests.resume.nursery import Nursery
from tests.resume.outcome import assert_every_checkpoint_is_sound, digest_of, rows_of

SETTINGS = ("num_lanes=4", "num_steps=32", "batch_size=64", "num_epochs=2", "normalize_obs=true", "budget.env_steps=2k",
            "normalize_reward=true",
            "checkpoint.every_updates=2", "checkpoint.every_seconds=null")  # fmt: skip


def words_of(env: str, run: str) -> tuple[str, ...]:
    return ("train", "ppo", env, *SETTINGS, "--run-id", run, "--quiet")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_killed_in_an_episode_and_resumed_it_ends_as_if_alone(nursery: Nursery, name: str) -> None:
    runs = nursery.folder / "runs"
    for env, run in ((f"native/{name}", f"native-{name}"), (name, f"gym-{name}")):
        status, printed = nursery.run(*words_of(env, run))
        assert status == 0, printed
    words, directory = words_of(f"native/{name}", f"killed-{name}"), runs / f"killed-{name}"
    for fate in (Fate("collect", 150), Fate("collect", 71), Fate("update", 9)):
        status, printed = nursery.run(*words, fates=[fate])
        assert status == -signal.SIGKILL, printed
        assert_every_checkpoint_is_sound(directory)
        words = ("resume", f"killed-{name}", "--quiet")
    status, printed = nursery.run(*words)
    assert status == 0, printed
    undisturbed = runs / f"native-{name}"
    assert digest_of(directory) == digest_of(undisturbed)
    assert rows_of(directory) == rows_of(undisturbed) == rows_of(runs / f"gym-{name}")


@pytest.mark.slow
def test_two_ranks_report_what_they_report_of_gymnasiums_lanes(nursery: Nursery) -> None:
    runs = {"native/CartPole-v1": "ranks-native", "CartPole-v1": "ranks-gym"}
    for env, run in runs.items():
        assert nursery.start(*words_of(env, run), "num_ranks=2").wait(timeout=200) == 0
    mine, theirs = (rows_of(nursery.folder / "runs" / run) for run in runs.values())
    assert mine == theirs
    assert len(mine) == 16
