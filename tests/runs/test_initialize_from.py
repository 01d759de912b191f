"""A run that begins with the weights of another takes them as what it began with."""

from __future__ import annotations

from pathlib import Path

import torch

from quintain.runs import launch
from quintain.settings.tree import RunFile

SETTINGS = (
    "num_lanes=2", "group_size=2", "num_steps=8", "batch_size=8", "num_epochs=1", "hidden_sizes=[4]", "events=[]",
    "normalize_obs=true", "total_timesteps=64", "learning_rate=0.05", "kl_coef=0.1",
)  # fmt: skip


def test_the_reference_policy_is_the_one_that_was_given(tmp_path: Path) -> None:
    run_file = RunFile.from_names("grpo", "CartPole-v1", *SETTINGS)
    first = launch.start(run_file, runs_dir=tmp_path, run_id="first", quiet=True)
    fresh = {name: value.clone() for name, value in first.trainer.policy.state_dict().items()}
    first.trainer.train()
    trained = first.trainer.policy.state_dict()
    given = launch.checkpoint_of(tmp_path, "first")
    first.run.close()
    second = launch.start(run_file, runs_dir=tmp_path, run_id="second", initialize_from=given, quiet=True)
    reference = second.trainer.algorithm.reference.state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in reference.items())
    assert any(not torch.equal(value, fresh[name]) for name, value in reference.items())
    second.trainer.train()
    second.run.close()
    # What it began with is in its checkpoints, so a resumed run stays near the same policy.
    resumed = launch.resume(tmp_path, "second", quiet=True)
    reference = resumed.trainer.algorithm.reference.state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in reference.items())
    resumed.run.close()
