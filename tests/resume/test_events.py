"""Runs with events of every kind: killed and resumed, in workers and on ranks, they end with the same numbers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.resume.test_workers import kill_after_checkpoint, outcome, run

ENV = "tests.envs.fragile:WindyAndFragile"
EVENTS = ("tests.resume.weather:breeze", "tests.resume.weather:Storm")
ALLOWED = tuple(word for name in (ENV, *EVENTS) for word in ("--allow", name))
ENV_EVENTS = [
    {"type": EVENTS[0], "mode": "reset", "strength": 0.02},
    {"type": EVENTS[1], "mode": "interval", "interval_step": 5, "count_from": "episode", "growth": 0.02},
    {"type": "randomize_parameters", "mode": "interval", "interval_step": 23, "ranges": {"wind": [-0.1, 0.1]}},
]
TRAINER_EVENTS = [
    {"type": "randomize_env", "every_updates": 3, "ranges": {"wind": [-0.2, 0.2]}},
    {"type": "reset_env", "every_updates": 5},
    {"type": "collect_data", "every_updates": 2, "keep": 3},
    {"type": "log_data", "every_updates": 1, "fields": ["reward"]},
    {"type": "evaluate", "every_updates": 4, "num_episodes": 2, "env_events": ENV_EVENTS[:1]},
]
SETTINGS = (
    "num_lanes=4", "num_steps=16", "batch_size=64", "num_epochs=2", "normalize_obs=true", "budget.env_steps=1280",
    "env_workers.max_restarts=100000", "env_workers.max_failures_in_a_row=1000", "checkpoint.every_updates=2",
    "checkpoint.every_seconds=null", f"env.env_events={json.dumps(ENV_EVENTS)}",
    f"experiment.behaviors.default.events={json.dumps(TRAINER_EVENTS)}",
)  # fmt: skip


def words(run_id: str, num_workers: int | None, *more: str) -> tuple[str, ...]:
    workers = f"env_workers.num_workers={'null' if num_workers is None else num_workers}"
    return ("train", "ppo", ENV, workers, *SETTINGS, *more, "--run-id", run_id)


def train(folder: Path, run_id: str, num_workers: int | None, *more: str) -> Path:
    status, printed = run(folder, *words(run_id, num_workers, *more))
    assert status == 0, printed
    return folder / "runs" / run_id


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_killed_and_resumed_in_workers_it_is_as_if_nothing_had_happened(num_ranks: int, tmp_path: Path) -> None:
    ranks = (f"num_ranks={num_ranks}",)
    expected = outcome(train(tmp_path, "alone", None, *ranks))
    directory, chance = tmp_path / "runs" / "killed", random.Random(num_ranks)
    now = words("killed", 2, *ranks)
    for _ in range(2):
        kill_after_checkpoint(tmp_path, now, directory, chance.uniform(0.0, 0.1), row=17)
        now = ("resume", "killed", *ALLOWED)
    status, printed = run(tmp_path, *now)
    assert status == 0, printed
    assert outcome(directory) == expected
    # The window of files is the same too: none is missing and none is left of what was done again.
    names = sorted(path.name for path in (directory / "rollouts").iterdir())
    assert names == [f"rollout-{number:06d}.safetensors" for number in (16, 18, 20)]
    for name in names:
        mine, theirs = (load_file(tmp_path / "runs" / each / "rollouts" / name) for each in ("killed", "alone"))
        assert {key: array.tobytes() for key, array in mine.items()} == {k: a.tobytes() for k, a in theirs.items()}


@pytest.mark.slow
def test_the_numbers_do_depend_on_the_events(tmp_path: Path) -> None:
    short = "budget.env_steps=320"
    digests = {
        outcome(train(tmp_path, "with", None, short))[0],
        outcome(train(tmp_path, "without", None, short, "env.env_events=[]"))[0],
        outcome(train(tmp_path, "weaker", None, short, f"env.env_events={json.dumps(ENV_EVENTS[1:])}"))[0],
    }
    assert len(digests) == 3
