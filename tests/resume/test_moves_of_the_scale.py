"""A run that stops after moves of the scale were folded into its weights continues exactly."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.policies.normalizer import SETTLED_ROWS
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.behaviors.runs import poca_file, run_file

NUM_LANES = 100
PPO = {"num_steps": 20, "batch_size": 500, "num_epochs": 2}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", "CartPole-v1", {**PPO, "compiled": False}),
    "compiled ppo that clips": ("ppo", "Pendulum-v1", {**PPO, "compiled": True, "obs_clip": 1.0}),
    "ppo with memory": ("ppo", "CartPole-v1", {**PPO, "memory": {"size": 4}}),
    "sac": ("sac", "Pendulum-v1", {"num_steps": 10, "learning_starts": 2000, "updates_per_step": 0.01}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_stopped_between_folded_moves_is_the_run_that_was_not(name: str) -> None:
    algorithm, env, changes = RUNS[name]
    behavior = {"algorithm": {"type": algorithm}, "events": []}
    settings = RunFile.from_mapping(
        {
            "experiment": {
                "env": {"type": "gym", "id": env, "num_lanes": NUM_LANES},
                "budget": {"env_steps": 16_000},
                "behaviors": {"default": behavior},
            },
            "run": {"writers": []},
        },
        changes={"hidden_sizes": [8], "normalize_obs": True, **changes},
    )
    # After 12,500 and 14,000 rows, within a rollout both times: the scale has settled before.
    assert SETTLED_ROWS + 2000 <= 125 * NUM_LANES
    assert_resumes_exactly(settings, stop_after_steps=[125, 15])


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True], ids=["ppo", "poca"])
def test_agents_stopped_between_folded_moves_are_those_that_were_not(group: bool) -> None:
    changes: dict[str, Any] = {
        "policy": {"normalize_obs": True},
        "rollout": {"buffer_size": 2000},
        "algorithm": {"batch_size": 500},
    }
    settings = poca_file(16_000, **changes) if group else run_file("balance_ball", 16_000, **changes)
    assert_resumes_exactly(settings, stop_after_steps=[1300, 100])
