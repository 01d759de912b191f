"""`transition_view` shows the learner's steps with what each one bootstraps from."""

from __future__ import annotations

import torch

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.data.views import transition_view
from tests.declared import declared


def make() -> Rollout:
    rollout = Rollout(BehaviorSpec(obs=box(1), action=discrete(2)), num_lanes=2, num_steps=3, fields=declared())
    rollout.begin(1, version=0)
    rollout[f.VALUE][0] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    rollout[f.VALUE][1] = torch.tensor([5.0, 6.0, 7.0, 8.0])
    # Lane 0 is truncated at t = 1, and its last observation is worth 9; lane 1 terminates at t = 2.
    rollout[f.DONE][0, 1] = rollout[f.TRUNCATED][0, 1] = True
    rollout[f.FINAL_VALUE][0, 1] = 9.0
    rollout[f.DONE][1, 2] = rollout[f.TERMINATED][1, 2] = True
    return rollout


def test_next_value_is_what_each_step_bootstraps_from() -> None:
    view = transition_view(make())
    assert view.batch_size == torch.Size([2, 3])
    # Lane 0: V_1 = 2, then 9 after the cut instead of V_2 = 3, then V_3 = 4. Lane 1: V_1 = 6, V_2 = 7, 0 after the end.
    assert view["next_value"].tolist() == [[2.0, 9.0, 4.0], [6.0, 7.0, 0.0]]


def test_the_view_shares_memory_and_leaves_the_rollout_alone() -> None:
    rollout = make()
    values = rollout[f.VALUE].clone()
    view = transition_view(rollout)
    for name in rollout.storage:
        assert view[name].data_ptr() == rollout[name].data_ptr()
        assert view[name].shape[:2] == (2, 3)
    assert torch.equal(rollout[f.VALUE], values)
    assert "next_value" not in rollout.storage
    view[f.ADVANTAGE][1, 2] = 5.0
    assert rollout[f.ADVANTAGE][1, 2] == 5.0


def test_flattened_rows_are_in_lane_order() -> None:
    flat = transition_view(make(), flatten=True)
    assert flat[f.VALUE].tolist() == [1.0, 2.0, 3.0, 5.0, 6.0, 7.0]
    assert flat["next_value"].tolist() == [2.0, 9.0, 4.0, 6.0, 7.0, 0.0]
