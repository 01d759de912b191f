"""Runs whose budget is a number of updates: schedules, evaluations, header and resume follow it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.errors import SettingsError
from quintain.runs.launch import resume, start
from quintain.settings.tree import RunFile

SMALL = ("num_lanes=2", "num_steps=8", "batch_size=16", "num_epochs=1", "hidden_sizes=[4]")


def run_file(*overrides: str) -> RunFile:
    return RunFile.from_names("ppo", "CartPole-v1", *SMALL, *overrides)


def test_without_a_budget_a_run_has_its_default_of_steps() -> None:
    assert (run_file().budget.env_steps, run_file().budget.updates) == (100_000, None)
    assert (run_file("budget.updates=5").budget.env_steps, run_file("budget.updates=5").budget.updates) == (None, 5)
    both = run_file("budget.updates=5", "total_timesteps=64").budget
    assert (both.env_steps, both.updates, str(both)) == (64, 5, "64 steps or 5 updates")


def test_schedules_and_evaluations_follow_updates(tmp_path: Path) -> None:
    launched = start(
        run_file("budget.updates=4", "learning_rate=1.0e-3", "learning_rate.end=0", "events=[{type: evaluate}]"),
        runs_dir=tmp_path,
        run_id="a",
        quiet=True,
    )
    trainer = launched.trainer
    [evaluate] = [entry for entry in trainer.events.entries if entry.name == "evaluate"]
    assert (evaluate.when.updates, evaluate.when.env_steps) == (1, None)
    trainer.train()
    assert trainer.progress.updates == 4
    launched.run.close()
    rows = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [row["train/learning_rate"] for row in rows] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_a_run_that_is_asked_for_more_updates_goes_on(tmp_path: Path) -> None:
    settings = run_file("budget.updates=2", "events=[]")
    first = start(settings, runs_dir=tmp_path, run_id="a", quiet=True)
    first.trainer.train()
    first.run.close()
    more = resume(tmp_path, "a", ["budget.updates=5"], quiet=True)
    more.trainer.train()
    more.run.close()
    whole = start(run_file("budget.updates=5", "events=[]"), runs_dir=tmp_path, run_id="b", quiet=True)
    whole.trainer.train()
    whole.run.close()
    assert more.trainer.progress.updates == whole.trainer.progress.updates == 5
    for mine, other in zip(more.trainer.policy.parameters(), whole.trainer.policy.parameters(), strict=True):
        assert mine.equal(other)


def test_an_event_that_no_update_reaches_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"9 can never happen in a run of experiment\.budget\.updates 5") as error:
        run_file("budget.updates=5", "events=[{type: reset_env, every_updates: 9}]")
    assert error.value.code == "E0214"


def test_a_loop_and_an_environment_exclude_each_other() -> None:
    loop = {"loop": {"type": "x:Y"}, "env": {"type": "gym", "id": "CartPole-v1"}}
    with pytest.raises(SettingsError, match=r"experiment.*has no env beside it"):
        RunFile.from_mapping({"experiment": loop})
