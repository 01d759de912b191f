"""Tuned settings that ship: each file is valid, has its scores, and lies below the user's own settings."""

from __future__ import annotations

import json
from statistics import fmean

import pytest

from quintain import Trainer
from quintain.cli.app import main
from quintain.errors import SettingsError
from quintain.runs.launch import tuned_advice
from quintain.settings.base import Schedule
from quintain.settings.tree import RunFile
from quintain.settings.tuned import FOLDER, MIN_SEEDS, Tuned, all_tuned, tuned_settings
from tests.docs.pages import DOCS

FILES = all_tuned()


@pytest.mark.parametrize("tuned", FILES, ids=lambda tuned: tuned.name)
def test_every_file_makes_a_run_and_has_scores_that_were_run_here(tuned: Tuned) -> None:
    file = tuned.file
    run_file = RunFile.from_names(file.algorithm, file.env, tuned=True)
    assert run_file.experiment.budget.env_steps
    assert tuned_settings(file.algorithm.upper(), f"package:{file.env}") == tuned
    seen = file.measured
    assert seen is not None
    assert len(seen.seeds) >= MIN_SEEDS or "one seed" in seen.note
    assert seen.cpu_minutes <= 20
    rows = [json.loads(line) for line in (DOCS / "results" / "tuned.jsonl").read_text("utf-8").splitlines()]
    name = tuned.name.removeprefix(f"{FOLDER.name}/").removesuffix(".yaml")
    run = {row["seed"]: float(f"{fmean(row['returns']):.4g}") for row in rows if row["file"] == name}
    assert {seed: run[seed] for seed in seen.seeds} == dict(zip(seen.seeds, seen.scores, strict=True))


def test_there_are_files_and_not_too_many() -> None:
    assert 5 <= len(FILES) <= 15


def test_a_setting_of_the_user_goes_before_a_tuned_one() -> None:
    tuned = RunFile.from_names("PPO", "LunarLander-v3", "gamma=0.9", tuned=True)
    assert tuned.origins["experiment.budget.env_steps"] == "tuned/ppo-LunarLander-v3.yaml"
    assert tuned.experiment.behaviors["default"].reward_signals["extrinsic"].gamma == 0.9  # type: ignore[attr-defined]
    assert any("mean return" in note for note in tuned.notes)


def test_a_pair_without_a_file_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(SettingsError, match=r"no tuned settings for a2c on CartPole-v1; there are for: .*ppo Lunar"):
        RunFile.from_names("a2c", "CartPole-v1", tuned=True)


def test_the_header_of_a_run_without_them_says_that_there_are_tuned_settings() -> None:
    advice = tuned_advice(RunFile.from_names("ppo", "LunarLander-v3"))
    assert advice == "note: there are tuned settings for ppo on LunarLander-v3, with scores: --tuned"
    assert tuned_advice(RunFile.from_names("ppo", "LunarLander-v3", tuned=True)) == ""
    assert tuned_advice(RunFile.from_names("a2c", "LunarLander-v3")) == ""


def test_the_command_line_shows_their_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "ppo", "LunarLander-v3", "--tuned"]) == 0
    assert "# tuned/ppo-LunarLander-v3.yaml" in capsys.readouterr().out
    assert main(["train", "examples/cartpole.yaml", "--tuned"]) == 2
    assert "--tuned goes with two names" in capsys.readouterr().err


def test_a_trainer_takes_them_for_two_names() -> None:
    with pytest.raises(SettingsError, match="tuned=True goes with two names"):
        Trainer("ppo", lambda: None, tuned=True)
    trainer = Trainer(
        "ppo", "CartPole-v1", tuned=True, total_timesteps=64, num_steps=8, batch_size=8, writers=[], events=[]
    )
    wanted = tuned_settings("ppo", "CartPole-v1").file.settings["learning_rate"]
    assert trainer.algorithm.settings.learning_rate == Schedule.model_validate(wanted)
    trainer.close()
