"""A run with replay ends with the same numbers however often it is killed, and its checkpoints share what they can."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.resume.fates import WRITING, Fate
from tests.resume.nursery import Nursery
from tests.resume.outcome import assert_every_checkpoint_is_sound, digest_of, rows_of

NUM_KILLS = 20
SETTINGS = (
    "num_lanes=2", "rollout.num_steps=2", "batch_size=16", "hidden_sizes=[8]", "buffer_size=300", "learning_starts=40",
    "updates_per_step=0.5", "num_return_steps=3", "normalize_obs=true", "normalize_reward=true",
    "budget.env_steps=1200",
    "report.every_updates=25", "checkpoint.every_seconds=null", "checkpoint.keep=2", "--quiet",
)  # fmt: skip
EVALUATION = 'experiment.behaviors.default.events=[{"type": "evaluate", "num_episodes": 2, "every_env_steps": 500}]'
# A cycle is four steps, and a checkpoint follows every twenty of them: a commit is about forty system calls.
REACH = {
    "collect": 300, "update": 300, "between stages": 500, "evaluation": 300, "restore": 2, "write checkpoint": 150,
    "before rename": 5, "after rename": 5, "retention": 60, "metrics": 5, "status": 30,
}  # fmt: skip


@pytest.fixture(scope="module")
def small_segments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    # Rows of Pendulum have 36 bytes: 300 of them are eleven segments of 28.
    nursery = Nursery(tmp_path_factory.mktemp("replay"), segment_bytes=1024)
    yield nursery
    nursery.close()


def words_of(run: str) -> tuple[str, ...]:
    return ("train", "sac", "Pendulum-v1", *SETTINGS, EVALUATION, "checkpoint.every_updates=20", "--run-id", run)


@pytest.fixture(scope="module")
def reference(small_segments: Nursery) -> tuple[str, list[dict[str, Any]]]:
    status, printed = small_segments.run(*words_of("alone"))
    assert status == 0, printed
    directory = small_segments.folder / "runs" / "alone"
    return digest_of(directory), rows_of(directory)


def bulk_of(checkpoint: Path) -> dict[str, int]:
    return {file.name: file.stat().st_ino for file in checkpoint.glob("*.bulk")}


@pytest.mark.slow
def test_kills_change_no_number(small_segments: Nursery, reference: tuple[str, list[dict[str, Any]]]) -> None:
    chance = random.Random(7)
    num_kills, num_runs, struck = 0, 0, set()
    while num_kills < NUM_KILLS:
        num_runs += 1
        run = f"killed-{num_runs}"
        words, directory = words_of(run), small_segments.folder / "runs" / run
        for kill in range(6):
            place = chance.choice(WRITING if kill % 2 == 0 else [p for p in REACH if p not in WRITING])
            status, printed = small_segments.run(*words, fates=[Fate(place, chance.randint(1, REACH[place]))])
            assert_every_checkpoint_is_sound(directory)
            words = ("resume", run, "--quiet")
            if status == 0:
                break
            assert status == -signal.SIGKILL, printed
            num_kills += 1
            struck.add(place)
        else:
            status, printed = small_segments.run(*words)
            assert status == 0, printed
        assert (digest_of(directory), rows_of(directory)) == reference
        assert num_runs < 20, "the fates strike too rarely"
    assert struck & set(WRITING)
    assert struck - set(WRITING)


@pytest.mark.slow
def test_neighbouring_checkpoints_share_what_did_not_change(
    small_segments: Nursery, reference: tuple[str, list[dict[str, Any]]]
) -> None:
    older, newer = sorted((small_segments.folder / "runs" / "alone" / "checkpoints").glob("0*"))[-2:]
    ours, theirs = bulk_of(newer), bulk_of(older)
    shared = [name for name in ours if theirs.get(name) == ours[name]]
    # 80 steps between them are 80 of 300 rows: at most five of eleven segments of 28 rows changed.
    assert len(ours) == 11
    assert 6 <= len(shared) < 11
    manifest = json.loads((newer / "manifest.json").read_text())
    assert set(ours) < set(manifest["files"])


@pytest.mark.slow
def test_a_replay_in_a_file_resumes_to_the_same_numbers(
    small_segments: Nursery, reference: tuple[str, list[dict[str, Any]]]
) -> None:
    words = (*words_of("mapped"), "run.replay.max_memory_bytes=1")
    status, printed = small_segments.run(*words, fates=[Fate("update", 200)])
    assert status == -signal.SIGKILL, printed
    status, printed = small_segments.run("resume", "mapped", "run.replay.max_memory_bytes=1")
    assert status == 0, printed
    assert "kept in a file" in printed
    directory = small_segments.folder / "runs" / "mapped"
    assert (digest_of(directory), rows_of(directory)) == reference


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "env", "option"),
    [("td3", "Pendulum-v1", "policy_delay=3"), ("dqn", "CartPole-v1", "target_update_every=7")],
)
def test_kills_change_no_number_of_td3_and_dqn(small_segments: Nursery, algorithm: str, env: str, option: str) -> None:
    """Delayed updates and target updates go on by the number of the gradient step, exploration by its schedule."""
    words = ("train", algorithm, env, *SETTINGS, option, "checkpoint.every_updates=20", "budget.env_steps=600")
    status, printed = small_segments.run(*words, "--run-id", f"{algorithm}-whole")
    assert status == 0, printed
    directory, killed = (small_segments.folder / "runs" / f"{algorithm}-{name}" for name in ("whole", "killed"))
    words = (*words, "--run-id", killed.name)
    for fate in (Fate("update", 61), Fate("write checkpoint", 90), Fate("collect", 45)):
        status, printed = small_segments.run(*words, fates=[fate])
        assert status == -signal.SIGKILL, printed
        words = ("resume", killed.name, "--quiet")
    status, printed = small_segments.run(*words)
    assert status == 0, printed
    assert (digest_of(killed), rows_of(killed)) == (digest_of(directory), rows_of(directory))
