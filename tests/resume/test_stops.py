"""Signals, closed terminals and pipes: a committed checkpoint, the promised exit code, an exact resume."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
from typing import Any

import pytest

from tests.resume.fates import HANG, NAP, Fate
from tests.resume.nursery import ENVIRONMENT, Nursery
from tests.resume.outcome import assert_every_checkpoint_is_sound, digest_of, rows_of

SETTINGS = (
    "num_lanes=2",
    "num_steps=16",
    "batch_size=16",
    "num_epochs=2",
    "normalize_obs=true",
    "budget.env_steps=640",
    'experiment.behaviors.default.events=[{"type": "evaluate", "num_episodes": 2}]',
    "checkpoint.every_seconds=null",
)
EXIT_CODES = {"SIGTERM": 143, "SIGINT": 130}

Reference = tuple[str, list[dict[str, Any]]]


def words_of(run: str, *more: str) -> tuple[str, ...]:
    return ("train", "ppo", "CartPole-v1", *SETTINGS, *more, "--run-id", run)


@pytest.fixture(scope="module")
def reference(nursery: Nursery) -> Reference:
    assert nursery.run(*words_of("alone"))[0] == 0
    directory = nursery.folder / "runs" / "alone"
    return digest_of(directory), rows_of(directory)


def outcome(nursery: Nursery, run: str) -> Reference:
    directory = nursery.folder / "runs" / run
    return digest_of(directory), rows_of(directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "call", "name"),
    [
        ("collect", 1, "SIGTERM"),
        ("collect", 23, "SIGINT"),
        ("collect", 320, "SIGTERM"),
        ("update", 5, "SIGINT"),
        ("between stages", 6, "SIGTERM"),
        ("evaluation", 7, "SIGINT"),
    ],
)
def test_a_signal_at_each_place(nursery: Nursery, reference: Reference, place: str, call: int, name: str) -> None:
    run = f"{name}-{place.replace(' ', '-')}-{call}"
    status, printed = nursery.run(*words_of(run), fates=[Fate(place, call, name)])
    assert status == EXIT_CODES[name], printed
    assert f"quintain resume {run}" in printed
    directory = nursery.folder / "runs" / run
    assert_every_checkpoint_is_sound(directory)
    written = json.loads((directory / "status.json").read_text())
    assert (written["state"], written["exit_code"], written["reason"]) == ("stopped", EXIT_CODES[name], name)
    status, printed = nursery.run("resume", run, "--quiet")
    assert status == 0, printed
    assert outcome(nursery, run) == reference


@pytest.mark.slow
def test_a_closed_terminal_saves_though_nothing_can_be_printed(nursery: Nursery, reference: Reference) -> None:
    ours, theirs = pty.openpty()
    words = words_of("closed", "budget.env_steps=10_000_000")
    process = nursery.start(*words, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"steps/s" not in seen:
        seen += os.read(ours, 65536)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 129
    directory = nursery.folder / "runs" / "closed"
    written = json.loads((directory / "status.json").read_text())
    assert (written["state"], written["reason"]) == ("stopped", "SIGHUP")
    # The stop saved more than the first checkpoint, and the run goes on from there.
    assert not written["checkpoint"].endswith("-step-0")


@pytest.mark.slow
def test_a_closed_pipe_leaves_the_console_out_and_the_run_goes_on(nursery: Nursery, reference: Reference) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = nursery.start(*words_of("piped"), **pipes)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("quintain ")
    process.stdout.close()
    with process.stderr:
        said = process.stderr.read()
    assert process.wait(timeout=60) == 0
    assert said.count("warning[W0811]: the reader of the console has gone") == said.count("\n") == 1
    assert outcome(nursery, "piped") == reference


@pytest.mark.slow
def test_an_update_that_takes_long_is_finished_and_saved(nursery: Nursery, reference: Reference) -> None:
    status, printed = nursery.run(*words_of("long"), fates=[Fate("update", 6, "SIGTERM"), Fate("update", 7, NAP)])
    assert status == 143
    assert "SIGTERM: stopping after the current update or evaluation; a second Ctrl-C exits at once" in printed
    # Four minibatches make an update of 32 steps: the second one is finished, and in the checkpoint after its stage.
    newest = max((nursery.folder / "runs" / "long" / "checkpoints").glob("*-step-*"))
    progress = json.loads((newest / "state.json").read_text())["training"]["progress"]
    assert (newest.name, progress["stage"]) == ("000002-step-32", 3)
    assert nursery.run("resume", "long", "--quiet") == (0, "")
    assert outcome(nursery, "long") == reference


@pytest.mark.slow
def test_many_signals_in_one_run(nursery: Nursery, reference: Reference) -> None:
    chance = random.Random(1)
    words = words_of("often", "--quiet")
    num_stops = 0
    while True:
        place, reach = chance.choice([("collect", 60), ("update", 12), ("between stages", 12), ("evaluation", 40)])
        fate = Fate(place, chance.randint(1, reach), chance.choice(list(EXIT_CODES)))
        status, printed = nursery.run(*words, fates=[fate])
        if status == 0:
            break
        assert status == EXIT_CODES[fate.what], printed
        num_stops += 1
        words = ("resume", "often", "--quiet")
    assert num_stops >= 5
    assert outcome(nursery, "often") == reference


@pytest.mark.slow
def test_a_stop_saves_the_steps_since_the_last_rollout(nursery: Nursery) -> None:
    status, _ = nursery.run(*words_of("half", "--quiet"), fates=[Fate("collect", 20, "SIGTERM")])
    assert status == 143
    path = nursery.folder / "runs" / "half" / "checkpoints"
    # The first rollout has 16 steps. The signal came before step 20, which still finishes: 4 of the second are kept.
    newest = sorted(path.iterdir())[-1]
    collector = json.loads((newest / "state.json").read_text())["training"]["source"]["collector"]
    assert (collector["lane_step"], collector["cursor"]) == (16, 4)


@pytest.mark.slow
def test_a_second_ctrl_c_exits_at_once(nursery: Nursery, reference: Reference) -> None:
    fates = [Fate("collect", 30, "SIGINT"), Fate("before rename", 2, "SIGINT")]
    status, printed = nursery.run(*words_of("twice"), fates=fates)
    assert status == 130
    assert "second Ctrl-C: exiting now; last checkpoint is 000001-step-0" in printed
    assert nursery.run("resume", "twice", "--quiet")[0] == 0
    assert outcome(nursery, "twice") == reference


@pytest.mark.slow
def test_a_second_sigterm_does_not_interrupt_the_last_commit(nursery: Nursery, reference: Reference) -> None:
    fates = [Fate("collect", 30, "SIGTERM"), Fate("before rename", 2, "SIGTERM")]
    assert nursery.run(*words_of("patient", "--quiet"), fates=fates)[0] == 143
    assert len(list((nursery.folder / "runs" / "patient" / "checkpoints").glob("*-step-*"))) == 2
    assert nursery.run("resume", "patient", "--quiet")[0] == 0
    assert outcome(nursery, "patient") == reference


@pytest.mark.slow
@pytest.mark.parametrize(
    "fates",
    [
        # Four minibatches make an update: the signal comes before the sixth of all, the seventh never ends.
        [Fate("update", 6, "SIGTERM"), Fate("update", 7, HANG)],
        [Fate("collect", 30, "SIGTERM"), Fate("before rename", 2, HANG)],
    ],
    ids=["update", "commit"],
)
def test_what_does_not_end_is_left_after_the_grace(nursery: Nursery, reference: Reference, fates: list[Fate]) -> None:
    run = f"stuck-in-{fates[1].place.replace(' ', '-')}"
    status, printed = nursery.run(*words_of(run, "grace_seconds=0.3"), fates=fates)
    assert status == 143
    assert "0.3 s (run.grace_seconds) after SIGTERM: exiting now; last checkpoint is 000001-step-0" in printed
    assert nursery.run("resume", run, "--quiet")[0] == 0
    assert outcome(nursery, run) == reference


@pytest.mark.slow
def test_a_signal_during_the_first_commit(nursery: Nursery, reference: Reference) -> None:
    status, _ = nursery.run(*words_of("early", "--quiet"), fates=[Fate("before rename", 1, "SIGTERM")])
    assert status == 143
    assert nursery.run("resume", "early", "--quiet")[0] == 0
    assert outcome(nursery, "early") == reference


@pytest.mark.slow
def test_rows_of_three_updates_survive_stops_and_checkpoints_in_between(nursery: Nursery) -> None:
    sparse = ("report.every_updates=3", "checkpoint.every_updates=2")
    assert nursery.run(*words_of("sparse-alone", *sparse, "--quiet"))[0] == 0
    reference = outcome(nursery, "sparse-alone")
    # 20 updates of 32 steps: rows at 3, 6, ... 18 and at the end.
    assert [row["step"] for row in reference[1]] == [96, 192, 288, 384, 480, 576, 640]
    words = words_of("sparse", *sparse, "--quiet")
    for fate in (
        Fate("collect", 70),
        Fate("collect", 20, "SIGTERM"),
        Fate("between stages", 7, "SIGINT"),
        Fate("metrics", 1),
        Fate("update", 11),
    ):
        status, printed = nursery.run(*words, fates=[fate])
        assert status in (-signal.SIGKILL, 143, 130), printed
        words = ("resume", "sparse", "--quiet")
    assert nursery.run(*words)[0] == 0
    assert outcome(nursery, "sparse") == reference


@pytest.mark.slow
def test_native_lanes_are_resumed_exactly(nursery: Nursery) -> None:
    native = ("vectorization=native",)
    assert nursery.run(*words_of("native-alone", *native, "--quiet"))[0] == 0
    status, printed = nursery.run(*words_of("native", *native, "--quiet"), fates=[Fate("collect", 75, "SIGTERM")])
    assert status == 143, printed
    assert nursery.run("resume", "native", "--quiet")[0] == 0
    assert outcome(nursery, "native") == outcome(nursery, "native-alone")


@pytest.mark.slow
def test_a_longer_budget_continues_a_finished_run(nursery: Nursery) -> None:
    assert nursery.run(*words_of("short", "budget.env_steps=320", "--quiet"))[0] == 0
    status, printed = nursery.run("resume", "short")
    assert (status, "nothing left to do: 320 of 320 steps are done" in printed) == (0, True)
    assert nursery.run("resume", "short", "total_timesteps=640", "--quiet")[0] == 0
    rows = rows_of(nursery.folder / "runs" / "short")
    assert [row["step"] for row in rows] == list(range(32, 641, 32))


@pytest.mark.slow
def test_the_hash_seed_changes_nothing(nursery: Nursery, reference: Reference) -> None:
    """The reference has a seed of its own; the end here is that of an interpreter of its own, with another."""
    assert nursery.run(*words_of("hashed", "--quiet"), fates=[Fate("collect", 20, "SIGTERM")])[0] == 143
    again = nursery.start_alone("resume", "hashed", "--quiet", env={**ENVIRONMENT, "PYTHONHASHSEED": "1"})
    assert again.wait(timeout=120) == 0
    assert outcome(nursery, "hashed") == reference
