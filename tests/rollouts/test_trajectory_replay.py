"""Transitions of trajectories lead to what followed in the same trajectory, or to what was seen after it."""

from __future__ import annotations

import numpy as np

from quintain.data import fields as f
from quintain.data.replay_memory import ReplayMemory
from quintain.data.row_layout import RowLayout
from quintain.data.spec import BehaviorSpec, box, multi_discrete
from quintain.data.trajectory import GROUP_REWARD, Closed, TrajectoryBlock
from quintain.data.transitions import TransitionWriter

SPEC = BehaviorSpec(obs=box(1), action=multi_discrete(2), mask_size=2)


def test_each_row_of_ragged_trajectories_becomes_one_transition() -> None:
    block = TrajectoryBlock(SPEC, 8)
    lengths = np.array([2, 1, 3])
    steps = {
        f.OBS: np.arange(9, dtype=np.float32).reshape(3, 3, 1),
        f.ACTION: np.zeros((3, 3, 1), np.int64),
        f.ACTION_MASK: np.zeros((3, 3, 2), np.bool_),
        **{name: np.zeros((3, 3), np.float32) for name in (f.REWARD, GROUP_REWARD, f.VALUE, f.LOG_PROB)},
    }
    closed = Closed(
        slots=np.arange(3),
        ids=np.arange(3),
        lengths=lengths,
        terminated=np.array([True, False, False]),
        truncated=np.array([False, True, False]),
        begins=np.ones(3, np.bool_),
        group_id=np.zeros(3, np.int64),
        next_obs={f.OBS: np.array([[50.0], [60.0], [70.0]], np.float32)},
    )
    block.append(closed, steps)
    block.seal()
    memory = ReplayMemory(RowLayout(SPEC), 10)
    reward = np.arange(6, dtype=np.float32).reshape(6, 1)
    TransitionWriter(memory, num_lanes=0).write(block, reward, gamma=0.5)
    assert len(memory) == 6
    drawn = {name: field.numpy() for name, field in memory.draw(np.arange(6)).items()}
    # The first of three slots has rows 0, 1 and 2 of what was seen, and so on.
    assert drawn[f.OBS][:, 0].tolist() == [0.0, 1.0, 3.0, 6.0, 7.0, 8.0]
    assert drawn[f"{f.NEXT}{f.OBS}"][:, 0].tolist() == [1.0, 1.0, 60.0, 7.0, 8.0, 70.0]
    assert drawn[f.DISCOUNT].tolist() == [0.5, 0.0, 0.5, 0.5, 0.5, 0.5]
    assert drawn[f.REWARD].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    # Where a trajectory goes on, its own mask follows; after it anything may be chosen.
    assert drawn[f"{f.NEXT}{f.ACTION_MASK}"][:, 0].tolist() == [False, True, True, False, False, True]
