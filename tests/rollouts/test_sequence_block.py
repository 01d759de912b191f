"""Trajectories with memory stand side by side, with what the policy remembered before each of them."""

from __future__ import annotations

import numpy as np

from quintain.data import fields as f
from quintain.data.joined_blocks import join_blocks
from quintain.data.rollout import Batch
from quintain.data.sequence_block import SequenceBlock
from quintain.data.spec import BehaviorSpec, box
from quintain.data.trajectory import GROUP_REWARD, Closed
from tests.declared import declared

SPEC = BehaviorSpec(obs=box(1), action=box(1))


def block() -> SequenceBlock:
    """Returns three trajectories of 3, 1 and 2 steps of at most three: a true end, an interruption, the horizon."""
    made = SequenceBlock(SPEC, horizon=3, num_columns=1, fields=declared(state=2))
    add(made)
    return made


def add(made: SequenceBlock, terminated: tuple[bool, ...] = (True, False, False)) -> None:
    steps = {
        f.OBS: np.arange(9, dtype=np.float32).reshape(3, 3, 1),
        f.ACTION: np.ones((3, 3, 1), np.float32),
        **{name: np.arange(9, dtype=np.float32).reshape(3, 3) for name in (f.REWARD, f.VALUE, f.LOG_PROB)},
        GROUP_REWARD: np.full((3, 3), 0.5, np.float32),
    }
    made.append(
        Closed(
            slots=np.array([2, 0, 1]),
            ids=np.arange(3),
            lengths=np.array([3, 1, 2]),
            terminated=np.array(terminated),
            truncated=np.array([False, not all(terminated), False]),
            begins=np.array([True, False, True]),
            group_id=np.zeros(3, np.int64),
            next_obs={f.OBS: np.array([[50.0], [60.0], [70.0]], np.float32)},
            begin_state=np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32),
            last_state=np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], np.float32),
        ),
        steps,
    )


def test_each_trajectory_has_a_column_of_its_own() -> None:
    made = block()
    made.seal()
    assert (made.num_lanes, made.num_held, made.num_episodes) == (3, 6, 2)
    assert made.array(f.VALID)[:-1].tolist() == [[True, True, True], [True, False, True], [True, False, False]]
    assert made.array(f.OBS)[:-1, :, 0].tolist() == [[6.0, 0.0, 3.0], [7.0, 0.0, 4.0], [8.0, 0.0, 0.0]]
    assert made.array(f.REWARD)[:-1].tolist() == [[6.5, 0.5, 3.5], [7.5, 0.0, 4.5], [8.5, 0.0, 0.0]]
    assert made.array(f.DONE)[:-1].tolist() == [[False, True, False], [False, False, True], [True, False, False]]
    assert made.array(f.TERMINATED)[2, 0]
    assert made.array(f.TRUNCATED)[0, 1]
    assert not made.array(f.TRUNCATED)[1, 2]
    assert made.array(f.FIRST)[0].tolist() == [True, False, True]
    assert made.policy_state.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert made.final.array(f.OBS)[:, 0].tolist() == [60.0, 70.0]
    np.testing.assert_allclose(made.final.array("policy_state"), [[0.3, 0.4], [0.5, 0.6]], rtol=1e-6)
    assert made.array(f.FINAL_INDEX)[0, 1] == 0
    assert made.array(f.FINAL_INDEX)[1, 2] == 1


def test_what_learners_write_stays_where_they_read_it() -> None:
    made = block()
    made.seal()
    made.flat(f.ADVANTAGE).fill_(3.0)
    assert made.array(f.ADVANTAGE)[:-1].min() == 3.0
    batch = Batch(made)
    assert (batch.num_valid, batch.num_episodes) == (6, 2)


def test_parts_of_which_one_has_only_true_ends_are_joined() -> None:
    whole, ended = (SequenceBlock(SPEC, horizon=3, num_columns=1, fields=declared(state=2)) for _ in range(2))
    add(ended, (True, True, True))
    for parts, index in (
        ([block(), ended, block()], [0, 1, -1, -1, 2, 3]),
        ([block(), ended], [0, 1, -1, -1]),
        ([ended, block()], [-1, -1, 0, 1]),
    ):
        join_blocks(whole, parts)
        # The second and third trajectory of each part ends after 1 and 2 steps.
        numbers = whole.array(f.FINAL_INDEX)
        assert [
            int(numbers[row, column + part]) for part in range(0, 3 * len(parts), 3) for row, column in ((0, 1), (1, 2))
        ] == index
        assert whole.final.array(f.OBS)[:, 0].tolist() == [60.0, 70.0] * (len(parts) - 1)
        assert whole.num_held == 6 * len(parts)


def test_it_survives_a_resume_and_does_not_remember_what_was_there_before() -> None:
    used = block()
    used.seal()
    used.flat(f.ADVANTAGE).fill_(3.0)
    used.begin(2, 0)
    assert (used.num_held, used.num_lanes) == (0, 0)
    add(used)
    fresh = block()
    fresh.sequence = used.sequence
    left, right = used.state_dict(), fresh.state_dict()
    assert all(left["fields"][name].equal(right["fields"][name]) for name in left["fields"])
    other = SequenceBlock(SPEC, horizon=3, num_columns=1, fields=declared(state=2))
    other.load_state_dict(left)
    for each in (used, other):
        add(each)
        each.seal()
    assert all((used.array(name) == other.array(name)).all() for name in used.storage)
    assert (other.num_held, other.num_columns) == (12, 6)
