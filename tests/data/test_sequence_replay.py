"""A row of sequence replay is one trajectory: its steps, what was seen after them, and what was remembered before."""

from __future__ import annotations

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.replay_memory import ReplayMemory
from quintain.data.row_layout import RowLayout
from quintain.data.sequence_block import SequenceBlock
from quintain.data.spec import BehaviorSpec, box, multi_discrete
from quintain.data.trajectory import GROUP_REWARD, Closed
from quintain.data.transitions import TransitionWriter
from tests.declared import declared

SPEC = BehaviorSpec(obs=box(1), action=multi_discrete(2), mask_size=2)
LENGTHS = [2, 1, 3]


def block_of(first: float) -> SequenceBlock:
    """Returns three trajectories that see `first` and so on, of 2, 1 and 3 steps."""
    block = SequenceBlock(SPEC, horizon=3, num_columns=1, fields=declared(state=2))
    steps = {
        f.OBS: first + np.arange(9, dtype=np.float32).reshape(3, 3, 1),
        f.ACTION: np.ones((3, 3, 1), np.int64),
        f.ACTION_MASK: np.tile(np.array([False, True]), (3, 3, 1)),
        **{name: np.zeros((3, 3), np.float32) for name in (f.REWARD, GROUP_REWARD, f.VALUE, f.LOG_PROB)},
        f.POLICY_VERSION: np.zeros((3, 3), np.int64),
    }
    closed = Closed(
        slots=np.arange(3),
        ids=np.arange(3),
        lengths=np.array(LENGTHS),
        terminated=np.array([True, False, False]),
        truncated=np.array([False, True, False]),
        begins=np.zeros(3, np.bool_),
        group_id=np.zeros(3, np.int64),
        next_obs={f.OBS: np.array([[50.0], [60.0], [70.0]], np.float32)},
        begin_state=first + np.array([[0.1, 0.2], [1.1, 1.2], [2.1, 2.2]], np.float32),
        last_state=np.zeros((3, 2), np.float32),
    )
    block.append(closed, steps)
    block.seal()
    return block


def written(memory: ReplayMemory, first: float = 0.0) -> None:
    reward = 1.0 + np.arange(9, dtype=np.float32).reshape(3, 3)
    TransitionWriter(memory, num_lanes=0).write(block_of(first), reward, gamma=0.5)


def test_each_trajectory_becomes_one_row() -> None:
    memory = ReplayMemory(RowLayout(SPEC, horizon=3, state_size=2), 5)
    written(memory)
    assert len(memory) == 3
    drawn = {name: field.numpy() for name, field in memory.draw(np.arange(3)).items()}
    # After a true end nothing counts; else what was seen next stands behind the last step.
    assert drawn[f.OBS][..., 0].tolist() == [[0.0, 1.0, 0.0, 0.0], [3.0, 60.0, 0.0, 0.0], [6.0, 7.0, 8.0, 70.0]]
    assert drawn[f.VALID].tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    # Rewards come by step and lane; those of steps that are not there do not.
    assert drawn[f.REWARD].tolist() == [[1.0, 4.0, 0.0], [2.0, 0.0, 0.0], [3.0, 6.0, 9.0]]
    assert drawn[f.DISCOUNT].tolist() == [[0.5, 0.0, 0.0], [0.5, 0.0, 0.0], [0.5, 0.5, 0.5]]
    assert drawn[f.ACTION][..., 0].tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
    # The first choice is forbidden in every step; after the last step nobody said.
    assert drawn[f.ACTION_MASK][..., 0].tolist() == [
        [False, False, True, True],
        [False, True, True, True],
        [False, False, False, True],
    ]
    np.testing.assert_array_equal(drawn[f.POLICY_STATE], np.array([[0.1, 0.2], [1.1, 1.2], [2.1, 2.2]], np.float32))


def test_a_full_ring_forgets_whole_sequences() -> None:
    memory = ReplayMemory(RowLayout(SPEC, horizon=3, state_size=2), 4)
    for first in (0.0, 100.0, 200.0):
        written(memory, first)
    drawn = {name: field.numpy() for name, field in memory.draw(np.arange(4)).items()}
    begins = drawn[f.OBS][:, 0, 0]
    # Nine were written: the newest four are the third of the second block and all of the third.
    assert sorted(begins.tolist()) == [106.0, 200.0, 203.0, 206.0]
    for row, begin in enumerate(begins):
        length = int(drawn[f.VALID][row].sum())
        assert length == LENGTHS[int(begin % 100 // 3)]
        assert drawn[f.OBS][row, :length, 0].tolist() == [begin + t for t in range(length)]


def test_what_is_saved_is_what_comes_back() -> None:
    memory, other = (ReplayMemory(RowLayout(SPEC, horizon=3, state_size=2), 4) for _ in range(2))
    written(memory)
    other.load_state_dict(memory.state_dict())
    for name, field in memory.draw(np.arange(3)).items():
        assert torch.equal(field, other.draw(np.arange(3))[name]), name
