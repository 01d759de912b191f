"""A run with a native environment learns what the same run with Gymnasium's learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quintain import Trainer
from quintain.errors import SettingsError
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly

SMALL = {"num_lanes": 4, "num_steps": 32, "hidden_sizes": [16], "writers": [], "seed": 9}


def weights_after_training(env: str, algorithm: str = "ppo", **settings: Any) -> torch.Tensor:
    learning = {} if algorithm == "a2c" else {"batch_size": 64, "num_epochs": 2}
    trainer = Trainer(algorithm, env, **{**SMALL, **learning, "events": [], **settings})
    for _ in range(6):
        assert trainer.advance()
    trainer.close()
    weights: torch.Tensor = trainer.algorithm.optimizer.flat.detach().clone()
    return weights


@pytest.mark.parametrize(
    ("name", "algorithm", "settings"),
    [
        ("CartPole-v1", "ppo", {"normalize_obs": True}),
        ("CartPole-v1", "grpo", {"group_size": 2, "max_episode_steps": 20}),
        ("CartPole-v1", "ppo", {"env_events": [{"type": "randomize_parameters", "ranges": {"gravity": [5.0, 15.0]}}]}),
        ("Pendulum-v1", "ppo", {"max_episode_steps": 25}),
        ("MountainCarContinuous-v0", "a2c", {"max_episode_steps": 25, "memory": {"cell": "lstm", "size": 4}}),
    ],
)
def test_weights_are_those_of_gymnasiums_environment(name: str, algorithm: str, settings: dict[str, Any]) -> None:
    mine = weights_after_training(f"native/{name}", algorithm, **settings)
    theirs = weights_after_training(name, algorithm, **settings)
    assert torch.equal(mine, theirs)
    assert not torch.equal(mine, weights_after_training(f"native/{name}", algorithm, **{**settings, "seed": 10}))


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", pytest.param("Acrobot-v1", marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_in_an_episode_is_the_run_that_was_not(name: str) -> None:
    evaluate = [{"type": "evaluate", "num_episodes": 2}]
    learning = {"batch_size": 16, "num_epochs": 2, "num_steps": 8, "events": evaluate, "max_episode_steps": 12}
    settings = {**SMALL, **learning, "budget.env_steps": 96}
    run_file = RunFile.from_mapping(
        {
            "experiment": {
                "env": {"type": "native", "id": name},
                "behaviors": {"default": {"algorithm": {"type": "ppo"}}},
            }
        },
        changes=settings,
    )
    assert_resumes_exactly(run_file, stop_after_steps=[3, 9, 1])


def test_workers_have_no_effect_and_are_refused() -> None:
    with pytest.raises(SettingsError, match="type native steps all its lanes itself") as refused:
        Trainer("ppo", "native/CartPole-v1", **{**SMALL, "batch_size": 64, "env_workers": {"num_workers": 2}})
    assert refused.value.code == "E0232"


def test_an_unknown_task_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"found \"Pong-v5\", expected one of 'Acrobot-v1'"):
        RunFile.from_names("ppo", "native/Pong-v5")
