"""No kill, wherever it strikes, changes a number: the checkpoints are sound, and the resumed run ends as if alone."""

from __future__ import annotations

import json
import random
import signal
import time
from typing import Any

import pytest

from quintain.cli import app
from tests.hold import Hold, wait_for
from tests.resume.fates import WRITING, Fate
from tests.resume.nursery import Nursery
from tests.resume.outcome import assert_every_checkpoint_is_sound, digest_of, rows_of

KILLS_PER_SETTING = 13  # four settings: 52 kills
KILLS_PER_RUN = 5

SETTINGS = (
    "num_lanes=4", "num_steps=16", "batch_size=32", "num_epochs=2", "normalize_obs=true", "budget.env_steps=1536",
)  # fmt: skip
EVALUATION = 'experiment.behaviors.default.events=[{"type": "evaluate", "num_episodes": 3}]'
NO_EVALUATION = "experiment.behaviors.default.events=[]"

# 1536 steps are 24 updates of 64 steps. Upper bounds reach a few updates far (and beyond one commit of about 30 system
# calls), so that a run dies several times before its end.
REACH = {
    "collect": 60,
    "update": 14,
    "between stages": 14,
    "evaluation": 60,
    "start": 6,
    "restore": 2,
    "write checkpoint": 60,
    "before rename": 4,
    "after rename": 4,
    "retention": 40,
    "metrics": 4,
    "status": 20,
}
ELSEWHERE = tuple(place for place in REACH if place not in WRITING)


def words_of(run: str, evaluation: str, every_updates: int) -> tuple[str, ...]:
    interval = (f"checkpoint.every_updates={every_updates}", "checkpoint.every_seconds=null", "checkpoint.keep=2")
    return ("train", "ppo", "CartPole-v1", *SETTINGS, evaluation, *interval, "--run-id", run, "--quiet")


@pytest.fixture(scope="module")
def references(nursery: Nursery) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Runs each setting undisturbed; evaluation adds columns to rows, and nothing else."""
    found = {}
    for evaluation, run in ((EVALUATION, "alone-on"), (NO_EVALUATION, "alone-off")):
        status, printed = nursery.run(*words_of(run, evaluation, 10))
        assert status == 0, printed
        directory = nursery.folder / "runs" / run
        found[evaluation] = (digest_of(directory), rows_of(directory))
    return found


@pytest.mark.slow
def test_evaluation_changes_no_number(references: dict[str, tuple[str, list[dict[str, Any]]]]) -> None:
    (digest_on, rows_on), (digest_off, rows_off) = references[EVALUATION], references[NO_EVALUATION]
    assert digest_on == digest_off
    assert len(rows_on) == 24
    assert any("eval/mean_reward" in row for row in rows_on)
    assert [{k: v for k, v in row.items() if not k.startswith("eval/")} for row in rows_on] == rows_off


@pytest.mark.slow
@pytest.mark.parametrize("every_updates", [1, 10])
@pytest.mark.parametrize("evaluation", [EVALUATION, NO_EVALUATION], ids=["evaluating", "not evaluating"])
def test_kills_at_chosen_calls(nursery: Nursery, references, evaluation: str, every_updates: int) -> None:
    chance = random.Random(f"{evaluation}/{every_updates}")
    num_kills, num_runs, struck = 0, 0, set()
    while num_kills < KILLS_PER_SETTING:
        num_runs += 1
        run = f"{'on' if evaluation == EVALUATION else 'off'}-{every_updates}-{num_runs}"
        words = words_of(run, evaluation, every_updates)
        directory = nursery.folder / "runs" / run
        for kill in range(KILLS_PER_RUN):
            place = chance.choice(WRITING if kill % 2 == 0 else ELSEWHERE)
            fate = Fate(place, chance.randint(1, REACH[place] * (1 if every_updates == 1 else 3)))
            status, printed = nursery.run(*words, fates=[fate])
            assert_every_checkpoint_is_sound(directory)
            words = ("resume", run, "--quiet")
            if status == 0:
                break
            assert status == -signal.SIGKILL, printed
            num_kills += 1
            struck.add(place)
        else:
            status, printed = nursery.run(*words)
            assert status == 0, printed
        assert (digest_of(directory), rows_of(directory)) == references[evaluation], fate
        assert num_runs < 20, "the fates strike too rarely"
    assert struck & set(WRITING)
    assert struck - set(WRITING)


@pytest.mark.slow
@pytest.mark.parametrize("places", [tuple(REACH)[start::3] for start in range(3)], ids=", ".join)
def test_a_kill_at_each_place(nursery: Nursery, references, places: tuple[str, ...]) -> None:
    run = f"each-{places[0].replace(' ', '-')}"
    directory = nursery.folder / "runs" / run
    # A run must be there before `restore` can be struck. Each resumed process is struck at once, the last one is not.
    words = words_of(run, EVALUATION, 2)
    for fate in (Fate("collect", 100), *(Fate(place, 3 if place != "restore" else 1) for place in places)):
        status, printed = nursery.run(*words, fates=[fate])
        assert status == -signal.SIGKILL, (fate, printed)
        assert_every_checkpoint_is_sound(directory)
        words = ("resume", run, "--quiet")
    status, printed = nursery.run(*words)
    assert status == 0, printed
    assert (digest_of(directory), rows_of(directory)) == references[EVALUATION]


@pytest.mark.slow
def test_a_kill_before_the_first_checkpoint_costs_nothing(nursery: Nursery, references) -> None:
    words = words_of("unborn", NO_EVALUATION, 10)
    for fate in (Fate("start", 2), Fate("write checkpoint", 5), Fate("before rename", 1)):
        status, _ = nursery.run(*words, fates=[fate])
        assert status == -signal.SIGKILL
        words = ("resume", "unborn")
    status, printed = nursery.run(*words)
    assert status == 0
    assert "before its first checkpoint" in printed
    directory = nursery.folder / "runs" / "unborn"
    assert (digest_of(directory), rows_of(directory)) == references[NO_EVALUATION]


@pytest.mark.slow
def test_a_kill_between_a_resumed_row_and_its_commit_does_not_repeat_the_row(nursery: Nursery, references) -> None:
    # Stopped inside the evaluation that closes a cycle: the counters have moved, the row is not written yet.
    status, _ = nursery.run(*words_of("row", EVALUATION, 10), fates=[Fate("evaluation", 30, "SIGTERM")])
    assert status == 143
    # The resumed process writes that row, and dies as it begins to commit the best policy so far.
    status, _ = nursery.run("resume", "row", "--quiet", fates=[Fate("write checkpoint", 1)])
    assert status == -signal.SIGKILL
    assert nursery.run("resume", "row", "--quiet")[0] == 0
    directory = nursery.folder / "runs" / "row"
    assert rows_of(directory) == references[EVALUATION][1]
    assert digest_of(directory) == references[EVALUATION][0]


@pytest.mark.slow
def test_kills_by_the_clock(nursery: Nursery, references, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(5)
    directory = nursery.folder / "runs" / "clock"
    status = directory / "status.json"
    words = words_of("clock", NO_EVALUATION, 1)
    for _ in range(3):
        hold = Hold(nursery.folder, 20)
        process = nursery.start(*words, launcher=hold.launcher)
        wait_for(lambda pid=process.pid: status.is_file() and json.loads(status.read_text())["pid"] == pid, process)
        time.sleep(chance.uniform(0.0, 0.3))
        process.kill()
        assert process.wait(timeout=60) == -signal.SIGKILL
        words = ("resume", "clock", "--quiet")
        assert app.main(["checkpoints", "list", "--json", str(directory)]) == 0
        for entry in json.loads(capsys.readouterr().out):
            assert entry["valid"]
            assert app.main(["checkpoints", "verify", entry["path"]]) == 0
        capsys.readouterr()
    assert nursery.start(*words).wait(timeout=200) == 0
    assert (digest_of(directory), rows_of(directory)) == references[NO_EVALUATION]
