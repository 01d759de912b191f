"""A run goes on in Python: exactly, in its own directory, and not before it is asked to train."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from torch import nn

from quintain import Trainer
from quintain.errors import CheckpointIncompatible, QuintainError, RunDirectoryError, SettingsError
from quintain.services.checkpoints.catalog import CheckpointCatalog
from quintain.services.checkpoints.state_files import digest_of
from quintain.services.events import After
from quintain.services.files.run_directory import RunDirectory
from tests.runs.test_trained import contents

SMALL: dict[str, Any] = {
    "num_lanes": 2,
    "num_steps": 16,
    "batch_size": 16,
    "num_epochs": 1,
    "writers": [],
    "events": [],
}


def trained(place: Path, run_id: str, env: Any = "CartPole-v1", budget: int = 64, **more: Any) -> str:
    """Trains a run and returns the digest of its end."""
    trainer = Trainer("ppo", env, run_id=run_id, runs_dir=place, **{**SMALL, **more})
    trainer.train(budget)
    digest = digest_of(trainer.state_dict())
    trainer.close()
    return digest


def test_a_loaded_run_goes_on_exactly_and_is_not_touched_before(tmp_path: Path) -> None:
    trained(tmp_path, "part")
    expected = trained(tmp_path, "whole", budget=160)
    before = contents(tmp_path / "part")
    trainer = Trainer.load("part", runs_dir=tmp_path)
    assert trainer.predict(np.zeros(4, np.float32))[0] in (0, 1)
    assert trainer.progress.env_steps == 64
    assert contents(tmp_path / "part") == before
    summary = trainer.train(160)
    assert (summary.state, summary.env_steps) == ("finished", 160)
    assert digest_of(trainer.state_dict()) == expected
    trainer.close()
    steps = [json.loads(line)["step"] for line in (tmp_path / "part" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [32, 64, 96, 128, 160]
    assert CheckpointCatalog(tmp_path / "part" / "checkpoints").latest(print).step == 160


def test_a_spent_budget_is_said_with_the_total_that_trains_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, "run")
    trainer = Trainer.load("run", runs_dir=tmp_path, writers=["console"])
    assert trainer.train(64).env_steps == 64
    printed = capsys.readouterr().out
    assert "nothing left to do: 64 of 64 steps are done" in printed
    assert "Budgets count from the first step" in printed
    assert "train(128)" in printed
    assert trainer.train(128).env_steps == 128
    assert "nothing left to do" not in capsys.readouterr().out
    trainer.close()


def test_a_stop_between_collecting_and_counting_says_that_the_steps_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = trained(tmp_path, "whole")
    settings = {**SMALL, "writers": ["console"]}
    trainer = Trainer("ppo", "CartPole-v1", run_id="part", runs_dir=tmp_path, **settings)
    trainer.events.add(After("update"), lambda it: it.stop("asked"))
    assert (trainer.train(64).env_steps, trainer.progress.stage) == (0, 3)
    printed = capsys.readouterr().out
    assert "step 0" in printed
    assert "a resume completes and counts it" in printed
    trainer.close()
    resumed = Trainer.load("part", runs_dir=tmp_path, writers=["console"])
    resumed.train(64)
    assert digest_of(resumed.state_dict()) == expected
    assert "a resume completes and counts it" not in capsys.readouterr().out
    resumed.close()


def test_an_older_checkpoint_supersedes_what_came_after_it(tmp_path: Path) -> None:
    expected = trained(tmp_path, "run", checkpoint={"every_updates": 1})
    first = next(p for p in CheckpointCatalog(tmp_path / "run" / "checkpoints").paths() if p.name.endswith("step-32"))
    trainer = Trainer.load(first)
    trainer.train(64)
    assert digest_of(trainer.state_dict()) == expected
    trainer.close()
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [32, 64]


def test_settings_may_change_and_are_recorded(tmp_path: Path) -> None:
    trained(tmp_path, "run")
    trainer = Trainer.load("run", runs_dir=tmp_path, learning_rate=1e-5, total_timesteps="0.1k")
    assert trainer.train().env_steps == 128
    trainer.close()
    directory = RunDirectory.open_existing(tmp_path / "run")
    assert "learning_rate: 1.0e-05" in directory.config.read_text()
    kinds = [json.loads(line)["kind"] for line in directory.events.read_text().splitlines()]
    assert kinds[-2:] == ["resumed", "settings_changed"]


def test_objects_that_settings_cannot_name_are_passed_again(tmp_path: Path) -> None:
    make_env = partial(gymnasium.make, "CartPole-v1", max_episode_steps=20)
    network = partial(nn.Linear, 4, 6)
    expected = trained(tmp_path, "whole", make_env, 96, policy=lambda: network())
    trained(tmp_path, "part", make_env, policy=lambda: network())
    trainer = Trainer.load("part", make_env, policy=lambda: network(), runs_dir=tmp_path)
    trainer.train(96)
    assert digest_of(trainer.state_dict()) == expected
    trainer.close()
    with pytest.raises(QuintainError):
        Trainer.load("part", runs_dir=tmp_path)


def test_mistakes_are_said(tmp_path: Path) -> None:
    trained(tmp_path, "run")
    first, second = (Trainer.load("run", runs_dir=tmp_path) for _ in range(2))
    first.train(96)
    with pytest.raises(RunDirectoryError, match=r"in use by another trainer of this process. Call close\(\)"):
        second.train(96)
    first.close()
    with pytest.raises(RunDirectoryError, match="went on after it was loaded"):
        second.train(96)
    second.close()
    with pytest.raises(SettingsError, match="has the environment of the run"):
        Trainer.load("run", "CartPole-v1", runs_dir=tmp_path)
    with pytest.raises(CheckpointIncompatible):
        Trainer.load("run", runs_dir=tmp_path, hidden_sizes=[8])
    with pytest.raises(RunDirectoryError, match="no run 'other'"):
        Trainer.load("other", runs_dir=tmp_path)
