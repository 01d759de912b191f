"""Values what a rollout's estimates are bootstrapped from: where its last step led, and where episodes were cut."""

from __future__ import annotations

import torch

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import build
from quintain.policies.base import Policy


def value_last(rollout: Rollout, policy: Policy, policy_state: torch.Tensor) -> None:
    """Values what the last step led to."""
    slot = rollout.slots[rollout.num_steps]
    slot.value.copy_(policy.value_of(slot.obs, policy_state, slot.leaves[f.FIRST]))


def value_truncated(rollout: Rollout, policy: Policy) -> None:
    """Values the last observations of episodes that were cut, all in one batch.

    With several reward streams those of episodes that really ended too: some streams do not end there.
    """
    values_all = rollout.has_many_values
    if not (rollout.array(f.DONE) & (values_all | ~rollout.array(f.TERMINATED))).any():
        return
    cut = rollout.storage[f.DONE] & (values_all | ~rollout.storage[f.TERMINATED])
    rows = rollout.final.take(rollout.storage[f.FINAL_INDEX][cut].long())
    obs = build(rollout.spec.obs, rows, f.OBS)
    rollout.storage[f.FINAL_VALUE][cut] = policy.value_of(obs, rows[f.POLICY_STATE])
