"""SAC learns from what agents that come and go did: remembered by trajectory, resumed exactly."""

from __future__ import annotations

import pytest

from quintain.errors import SettingsError
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.behaviors.runs import make, run_file


def sac_file(task: str, env_steps: int = 300) -> RunFile:
    settings = run_file(task, env_steps).to_dict()
    for behavior in settings["experiment"]["behaviors"].values():
        behavior["algorithm"] = {"type": "sac", "batch_size": 16, "learning_starts": 40, "updates_per_step": 0.1}
        behavior["policy"] = {"type": "soft_actor", "hidden_sizes": [8, 8]}
        behavior["rollout"] = {"type": "trajectory_replay", "num_steps": 40, "time_horizon": 8, "buffer_size": 200}
    return RunFile.from_mapping(settings)


def test_every_step_that_is_learned_from_is_remembered_once() -> None:
    trainer = make(sac_file("ball_and_gates"))
    trainer.train()
    for each in trainer.learners.values():
        memory = each.store.memory  # type: ignore[attr-defined]  # a store with replay
        assert memory.num_added == each.progress.env_steps >= 300
        assert len(memory) == 200


@pytest.mark.parametrize("task", ["balance_ball", "gates", "couriers"])
def test_stopped_anywhere_it_ends_with_the_same_numbers(task: str) -> None:
    assert_resumes_exactly(sac_file(task), stop_after_steps=[9, 14])


def test_the_store_goes_with_the_algorithm() -> None:
    settings = sac_file("gates").to_dict()
    settings["experiment"]["behaviors"]["Gate"]["rollout"] = {"type": "replay"}
    with pytest.raises(SettingsError, match=r"replay does not go with .* set it to trajectory_replay"):
        RunFile.from_mapping(settings)
