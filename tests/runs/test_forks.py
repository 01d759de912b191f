"""A fork records the checkpoint that it started with, and its settings repeat it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quintain import Trainer
from quintain.errors import CheckpointIncompatible, SettingsError
from quintain.runs import launch
from quintain.runs.launch import Launched
from quintain.runs.output import header_of
from quintain.services.checkpoints.catalog import CheckpointCatalog, load
from quintain.settings.tree import RunFile

SETTINGS = ("num_lanes=2", "num_steps=8", "batch_size=8", "num_epochs=1", "hidden_sizes=[4]", "events=[]")
BUDGET = "total_timesteps=64"


def trained(launched: Launched) -> str:
    """Trains to the end, and returns the digest."""
    launched.trainer.train()
    launched.trainer.close()
    launched.run.close()
    assert launched.run.last is not None
    return launched.run.last.digest


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    run_file = RunFile.from_names("ppo", "CartPole-v1", *SETTINGS, BUDGET)
    trained(launch.start(run_file, runs_dir=tmp_path, run_id="base", quiet=True))
    return tmp_path


def test_settings_of_a_fork_repeat_it(runs: Path) -> None:
    base = CheckpointCatalog(runs / "base" / "checkpoints").latest(lambda text: None)
    asked = RunFile.from_names("ppo", "CartPole-v1", *SETTINGS, BUDGET, "seed=1", "initialize_from=base")
    first = trained(launch.start(asked, runs_dir=runs, run_id="first", quiet=True))
    stored = RunFile.load(runs / "first" / "config.yaml")
    exactly = f"base@{base.name}#{base.digest[:12]}"
    assert stored.experiment.initialize_from == exactly
    newest = CheckpointCatalog(runs / "first" / "checkpoints").latest(lambda text: None)
    assert load(newest.path).manifest.about["forked_from"] == exactly
    assert header_of(stored, None, (0, 0), stored.budget).forked_from == f"base@{base.name}"
    again = trained(launch.start(stored, runs_dir=runs, run_id="second", quiet=True))
    assert again == first
    # Given as a path, as --initialize-from is, it is the same; without weights it is another run.
    plain = asked.replace("experiment.initialize_from", None)
    by_path = launch.start(plain, runs_dir=runs, run_id="third", initialize_from=base.path, quiet=True)
    assert by_path.run.run_file.experiment.initialize_from == exactly
    assert trained(by_path) == first
    assert trained(launch.start(plain, runs_dir=runs, run_id="fourth", quiet=True)) != first
    assert trained(launch.resume(runs, "first", ["total_timesteps=96"], quiet=True)) != first


def test_another_checkpoint_of_the_same_name_is_refused(runs: Path) -> None:
    asked = RunFile.from_names("ppo", "CartPole-v1", *SETTINGS, BUDGET, "initialize_from=base@latest#0123456789ab")
    with pytest.raises(CheckpointIncompatible, match="is not the one that this fork started with"):
        launch.start(asked, runs_dir=runs, run_id="fork", quiet=True)
    assert not (runs / "fork").exists()


def test_a_resumed_run_takes_no_other_weights(runs: Path) -> None:
    with pytest.raises(SettingsError, match="quintain train --initialize-from other") as error:
        launch.resume(runs, "base", ["initialize_from=other"], quiet=True)
    assert error.value.code == "E0207"


def test_a_trainer_starts_with_the_weights_of_a_run(runs: Path) -> None:
    settings = {"num_lanes": 2, "hidden_sizes": [4], "writers": [], "events": []}
    trainer = Trainer("ppo", "CartPole-v1", initialize_from="base", runs_dir=runs, **settings)
    base = launch.resume(runs, "base", quiet=True)
    given = base.trainer.policy.state_dict()
    assert all(torch.equal(value, given[name]) for name, value in trainer.policy.state_dict().items())
    base.trainer.close()
    base.run.close()
    trainer.close()


def test_networks_that_do_not_fit_are_named(runs: Path) -> None:
    with pytest.raises(CheckpointIncompatible) as error:
        launch.resume(runs, "base", ["hidden_sizes=[8]"], quiet=True)
    assert "hidden_sizes=[8] (was [4])" in error.value.notes[-1]
