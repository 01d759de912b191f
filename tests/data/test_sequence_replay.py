"""A row of sequence replay is one trajectory: its steps, what was seen after them, and what was remembered before."""

from __future__ import annotations

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.replay_memory import ReplayMemory
from quintain.data.rollout import Rollout
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


def lanes_of_two_episodes() -> tuple[Rollout, np.ndarray]:
    """Returns two lanes of four steps that see 0, 1, 2, ... and 10, 11, 12, ....

    The first goes on from the block before, ends truly after its second step, and goes on in the next block. The second
    begins an episode, runs out of time after its first step, and is only reset in its second.
    """
    block = Rollout(SPEC, declared(state=2), num_lanes=2, num_steps=4)
    block.begin(1, 0)
    block.storage[f.OBS].copy_(torch.arange(5.0)[:, None, None] + torch.tensor([[0.0], [10.0]]))
    block.storage[f.ACTION].fill_(1)
    block.storage[f.ACTION_MASK][..., 1] = True
    block.policy_state.copy_(torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
    block.storage[f.FIRST].zero_()
    block.storage[f.FIRST][2, 0] = block.storage[f.FIRST][0, 1] = block.storage[f.FIRST][2, 1] = True
    block.storage[f.VALID][1, 1] = False
    for t, lane, last in ((1, 0, 50.0), (0, 1, 60.0)):
        block.storage[f.DONE][t, lane] = True
        block.add_final_obs(t, np.array([lane]), {f.OBS: np.array([[last]], np.float32)}, block.policy_state)
    block.storage[f.TERMINATED][1, 0] = block.storage[f.TRUNCATED][0, 1] = True
    return block, 1.0 + np.arange(8, dtype=np.float32).reshape(4, 2)


def test_lanes_become_one_row_for_each_run_of_steps_of_one_episode() -> None:
    memory = ReplayMemory(RowLayout(SPEC, horizon=4, state_size=2), 5)
    block, reward = lanes_of_two_episodes()
    TransitionWriter(memory, num_lanes=0).write(block, reward, gamma=0.5)
    assert len(memory) == 4
    drawn = {name: field.numpy() for name, field in memory.draw(np.arange(4)).items()}
    # After a step that goes on stands what the next block begins with; after an end the episode's own last observation.
    assert drawn[f.OBS][..., 0].tolist() == [
        [0.0, 1.0, 50.0, 0.0, 0.0],
        [2.0, 3.0, 4.0, 0.0, 0.0],
        [10.0, 60.0, 0.0, 0.0, 0.0],
        [12.0, 13.0, 14.0, 0.0, 0.0],
    ]
    assert drawn[f.VALID].sum(axis=1).tolist() == [2, 2, 1, 2]
    # Rewards are 1, 3, 5, 7 in the first lane and 2, 4, 6, 8 in the second.
    assert drawn[f.REWARD].tolist() == [
        [1.0, 3.0, 0.0, 0.0],
        [5.0, 7.0, 0.0, 0.0],
        [2.0, 0.0, 0.0, 0.0],
        [6.0, 8.0, 0.0, 0.0],
    ]
    assert drawn[f.DISCOUNT][:, :2].tolist() == [[0.5, 0.0], [0.5, 0.5], [0.5, 0.0], [0.5, 0.5]]
    # The first action is never allowed; after an end it may be.
    assert drawn[f.ACTION_MASK][:, :3, 0].tolist() == [
        [False, False, True],
        [False, False, False],
        [False, True, True],
        [False, False, False],
    ]
    # Only the first sequence goes on from a block before; all others begin an episode.
    np.testing.assert_array_equal(drawn[f.POLICY_STATE], np.array([[0.1, 0.2], [0, 0], [0, 0], [0, 0]], np.float32))


def test_a_block_without_a_step_that_counts_adds_nothing() -> None:
    memory = ReplayMemory(RowLayout(SPEC, horizon=4, state_size=2), 5)
    block, reward = lanes_of_two_episodes()
    block.storage[f.VALID].zero_()
    TransitionWriter(memory, num_lanes=0).write(block, reward, gamma=0.5)
    assert len(memory) == 0
