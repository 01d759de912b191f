"""Computes the bootstrap values of a rollout: after its last step, and at truncated episodes."""

from __future__ import annotations

import torch

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import build
from quintain.policies.base import Policy


def value_last(rollout: Rollout, policy: Policy, policy_state: torch.Tensor) -> None:
    """Computes the value of the observation after the last step."""
    slot = rollout.slots[rollout.num_steps]
    slot.value.copy_(policy.value_of(slot.obs, policy_state, slot.leaves[f.FIRST]))


def value_truncated(rollout: Rollout, policy: Policy) -> None:
    """Computes the values of the last observations of truncated episodes, in one batch.

    With several reward signals also of terminated ones: some signals continue across episodes.
    """
    values_all = rollout.has_many_values
    if not (rollout.array(f.DONE) & (values_all | ~rollout.array(f.TERMINATED))).any():
        return
    cut = rollout.storage[f.DONE] & (values_all | ~rollout.storage[f.TERMINATED])
    rows = rollout.final.take(rollout.storage[f.FINAL_INDEX][cut].long())
    obs = build(rollout.spec.obs, rows, f.OBS)
    rollout.storage[f.FINAL_VALUE][cut] = policy.value_of(obs, rows[f.POLICY_STATE])
