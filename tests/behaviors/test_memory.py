"""Policies with memory act for agents that come and go: each remembers its own episode, and a resume is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain.data import fields as f
from quintain.testing import assert_resumes_exactly
from tests.behaviors.runs import make, run_file

MEMORY: dict[str, Any] = {"memory": {"cell": "lstm", "size": 4}}


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_stopped_anywhere_it_ends_with_the_same_numbers(cell: str) -> None:
    settings = run_file("gates", 300, policy={"memory": {"cell": cell, "size": 4}})
    assert_resumes_exactly(settings, stop_after_steps=[5, 12])


def test_learning_replays_what_each_agent_remembered() -> None:
    """Judged again over whole trajectories, actions have the probabilities and values that they were taken with."""
    trainer = make(run_file("gates", 2000, policy=MEMORY))
    [gate] = trainer.learners.values()
    for _ in range(2):
        trainer.advance()
    assert gate._stage_collect()
    rollout = gate.taken.rollout
    names = [*rollout.obs_names, f.ACTION, f.ACTION_MASK, f.FIRST]
    whole = {name: rollout.storage[name][:-1].flatten(0, 1) for name in names}
    with torch.no_grad():
        now = gate.policy.evaluate_actions({**whole, f.POLICY_STATE: rollout.policy_state})
    valid = rollout.array(f.VALID)[:-1]
    # A trajectory that was open while the policy learned has steps of two versions.
    is_new = ((rollout.array(f.POLICY_VERSION)[:-1] == gate.progress.version) | ~valid).all(axis=0)
    chosen = valid & is_new[None, :]
    assert (chosen.sum(axis=0) > 2).any(), "some of them are long enough to remember something"
    for name in (f.LOG_PROB, f.VALUE):
        again = now[name].view(rollout.num_steps, -1).numpy()
        np.testing.assert_allclose(again[chosen], rollout.array(name)[:-1][chosen], atol=1e-5)


def test_an_agent_that_begins_an_episode_remembers_nothing() -> None:
    trainer = make(run_file("gates", 2000, policy=MEMORY))
    [gate] = trainer.learners.values()
    assert gate._stage_collect()
    rollout = gate.taken.rollout
    begins = rollout.array(f.FIRST)[0]
    assert begins.any()
    assert (rollout.policy_state[torch.from_numpy(begins)] == 0).all()
    assert (rollout.policy_state[torch.from_numpy(~begins)] != 0).any() or begins.all()
