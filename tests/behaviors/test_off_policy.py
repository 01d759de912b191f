"""TD3 and DQN learn from agents that come and go, and are resumed exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quintain.errors import SpecMismatch
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.behaviors.runs import make, run_file

POLICIES = {"td3": "deterministic_actor", "dqn": "q_network"}


def file_of(algorithm: str, task: str, **policy: Any) -> RunFile:
    learning = {"type": algorithm, "batch_size": 16, "learning_starts": 40, "updates_per_step": 0.1}
    settings = run_file(task, 300).to_dict()
    for behavior in settings["experiment"]["behaviors"].values():
        behavior["algorithm"] = learning
        behavior["policy"] = {"type": POLICIES[algorithm], "hidden_sizes": [8], **policy}
        behavior["rollout"] = {"type": "trajectory_replay", "num_steps": 40, "time_horizon": 8, "buffer_size": 200}
    return RunFile.from_mapping(settings)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize(("algorithm", "task"), [("td3", "balance_ball"), ("dqn", "recall")])
def test_they_learn_and_stopped_anywhere_end_with_the_same_numbers(
    algorithm: str, task: str, is_compiled: bool
) -> None:
    settings = file_of(algorithm, task, compiled=is_compiled, normalize_obs=True)
    trainer = make(settings)
    [learner] = trainer.learners.values()
    before = [parameter.detach().clone() for parameter in learner.policy.parameters()]
    trainer.train()
    assert not any(torch.equal(*pair) for pair in zip(before, learner.policy.parameters(), strict=True))
    assert_resumes_exactly(settings, stop_after_steps=[9, 14])


def test_dqn_of_agents_with_several_choices_is_refused() -> None:
    with pytest.raises(SpecMismatch, match=r"one Discrete space, and the action is MultiDiscrete\[3, 2\]"):
        make(file_of("dqn", "gates"))
