"""Runs with structured spaces, masks, memory and groups continue exactly, wherever they were stopped, through files.

`STOPS` are steps of all lanes: inside the first rollout, inside the second, and at once after a resume.
"""

from __future__ import annotations

from typing import Any

import pytest

from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly

STOPS = [3, 9, 1]

MEMORY = {"memory": {"cell": "lstm", "size": 4}}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ppo, lstm, nested, hybrid, masks in the observation, squashed, adaptive": (
        "ppo",
        {"obs": "nested", "action": "hybrid dict", "masks": "obs"},
        {**MEMORY, "normalize_obs": True, "squash_actions": True, "adaptive_kl": 0.01, "micro_batch_size": 8},
    ),
    "ppo, gru, text, masks from a method": (
        "ppo",
        {"obs": "text", "action": "grid of choices", "masks": "method"},
        {"memory": {"cell": "gru", "size": 4}, "text_observations": "encode"},
    ),
    "ppo, groups of observations, images": (
        "ppo",
        {"obs": "dict", "action": "hybrid tuple", "masks": "info"},
        {"actor_obs": ["image", "choice"], "critic_obs": ["numbers"], "state_dependent_std": True},
    ),
    "ppo, state-dependent exploration": (
        "ppo",
        {"obs": "dict", "action": "hybrid tuple"},
        {"use_sde": True, "noise_hold": 5, "normalize_obs": True},
    ),
    "sac, state-dependent exploration": (
        "sac",
        {"obs": "dict", "action": "hybrid dict"},
        {"use_sde": True, "noise_hold": 5, "learning_starts": 24},
    ),
    "ppo, held noise": ("ppo", {"obs": "box", "action": "numbers"}, {"noise_hold": 5}),
    "a2c, lstm, choices": ("a2c", {"obs": "choices", "action": "bits", "masks": "info"}, MEMORY),
    "grpo, lstm, reference, masks": (
        "grpo",
        {"obs": "tuple", "action": "hybrid dict", "masks": "info"},
        {**MEMORY, "group_size": 2, "kl_coef": 0.1, "normalize_obs": True},
    ),
    "reinforce, gru, baseline, masks": (
        "reinforce",
        {"obs": "dict", "action": "hybrid tuple", "masks": "info"},
        {"memory": {"cell": "gru", "size": 4}, "normalize_obs": True},
    ),
    "ppo, transformer, chunks, burn-in, nested, hybrid, masks": (
        "ppo",
        {"obs": "nested", "action": "hybrid dict", "masks": "obs"},
        {
            "memory": {"cell": "transformer", "size": 8, "window": 5, "context_length": 3, "burn_in": 1},
            "normalize_obs": True,
        },
    ),
    "grpo, no reference": ("grpo", {"obs": "box", "action": "numbers"}, {"group_size": 4}),
}


QUICK = ("ppo, lstm, nested", "ppo, state-dep", "grpo, lstm")


@pytest.mark.parametrize(
    "name", [name if name.startswith(QUICK) else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def test_a_run_that_was_stopped_is_the_run_that_was_not(name: str) -> None:
    algorithm, kwargs, changes = RUNS[name]
    learning = {} if algorithm in ("a2c", "reinforce") else {"batch_size": 16}
    learning |= {"num_epochs": 2} if algorithm in ("ppo", "grpo") else {}
    run_file = RunFile.from_mapping(
        {
            "experiment": {
                "seed": 4,
                "env": {"type": "gym", "id": "tests.structured:Structured", "num_lanes": 4, "kwargs": kwargs},
                "budget": {"env_steps": 96},
                "behaviors": {
                    "default": {"algorithm": {"type": algorithm}, "events": [{"type": "evaluate", "num_episodes": 2}]}
                },
            },
            "run": {"writers": []},
        },
        changes={"num_steps": 8, "hidden_sizes": [8], "image_features": 8, **learning, **changes},
    )
    assert_resumes_exactly(run_file, stop_after_steps=STOPS)
