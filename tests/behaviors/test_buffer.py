"""Buffers, queues and trajectories by ML-Agents' names hold arrays and do what they did there."""

from __future__ import annotations

import numpy as np
import pytest

from quintain.behaviors import AgentBuffer, AgentManagerQueue, BufferKey, ObservationKeyPrefix, Trajectory
from quintain.behaviors.queues import TrajectoryQueue
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, TupleSpec, box, multi_discrete
from quintain.data.trajectory import GROUP_REWARD, Closed

HYBRID = BehaviorSpec(obs=box(2), action=TupleSpec((box(1, low=-1.0, high=1.0), multi_discrete(2))), mask_size=2)


def buffer(length: int = 7) -> AgentBuffer:
    made = AgentBuffer(seed=3)
    for number in range(length):
        made[BufferKey.ENVIRONMENT_REWARDS].append(float(number))
        made[ObservationKeyPrefix.OBSERVATION, 0].append(np.array([number, -number], np.float32))
    return made


def rewards(made: AgentBuffer) -> list[float]:
    found: list[float] = made[BufferKey.ENVIRONMENT_REWARDS].to_ndarray().tolist()
    return found


def test_rows_are_appended_and_read_as_arrays() -> None:
    made = buffer()
    assert made.num_experiences == 7
    assert len(made) == 2
    assert rewards(made) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert made[ObservationKeyPrefix.OBSERVATION, 0][3].tolist() == [3.0, -3.0]
    made.reset_agent()
    assert made.num_experiences == 0


def test_sequences_are_filled_up_at_their_end() -> None:
    field = buffer()[BufferKey.ENVIRONMENT_REWARDS]
    assert field.get_batch(training_length=3).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0]
    assert field.get_batch(training_length=3, padding_value=1.0).tolist()[-3:] == [6.0, 6.0, 6.0]
    assert field.get_batch(1, 3).tolist() == [6.0, 0.0, 0.0]
    assert field.get_batch(2, 3, sequential=False).tolist() == [3.0, 4.0, 5.0, 4.0, 5.0, 6.0]
    with pytest.raises(ValueError, match="9 sequences were asked for, and there are 3"):
        field.get_batch(9, 3)


def test_appending_to_another_buffer_keeps_columns_together() -> None:
    source, target = buffer(), AgentBuffer()
    source.resequence_and_append(target, batch_size=2, training_length=2)
    source.resequence_and_append(target, training_length=4)
    assert rewards(target) == [4.0, 5.0, 6.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0]
    assert len(target[ObservationKeyPrefix.OBSERVATION, 0]) == 12
    source[BufferKey.DONE].append(1.0)
    with pytest.raises(ValueError, match="not equally long"):
        source.resequence_and_append(target)


def test_shuffling_moves_whole_sequences_the_same_way_in_all_columns() -> None:
    made = buffer(8)
    made.shuffle(sequence_length=2)
    found = rewards(made)
    assert found != [float(i) for i in range(8)]
    assert sorted(found) == [float(i) for i in range(8)]
    assert all(found[i + 1] == found[i] + 1 and found[i] % 2 == 0 for i in range(0, 8, 2))
    assert made[ObservationKeyPrefix.OBSERVATION, 0].to_ndarray()[:, 0].tolist() == found


def test_minibatches_are_slices_or_draws_of_whole_sequences() -> None:
    made = buffer(8)
    assert rewards(made.make_mini_batch(2, 5)) == [2.0, 3.0, 4.0]
    drawn = rewards(made.sample_mini_batch(6, sequence_length=2))
    assert len(drawn) == 6
    assert all(drawn[i + 1] == drawn[i] + 1 and drawn[i] % 2 == 0 for i in range(0, 6, 2))


def test_truncating_never_cuts_a_sequence() -> None:
    made = buffer(12)
    made.truncate(10, sequence_length=4)
    # The newest two sequences of four: eight steps, not ten.
    assert rewards(made) == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]


def test_a_buffer_is_restored_with_its_order_of_draws() -> None:
    made, other = buffer(), AgentBuffer()
    made["mine"].set(np.arange(7.0))
    other.load_state_dict(made.state_dict())
    assert rewards(other) == rewards(made)
    assert other["mine"].to_ndarray().tolist() == list(range(7))
    assert rewards(made.sample_mini_batch(5)) == rewards(other.sample_mini_batch(5))


def test_no_two_keys_share_a_column() -> None:
    """In ML-Agents values and returns did, so that values were never clipped."""
    assert len({key.value for key in BufferKey}) == len(BufferKey.__members__)


def test_queues_keep_their_order_and_say_when_they_are_empty() -> None:
    queue: AgentManagerQueue[int] = AgentManagerQueue("Ball", maxlen=2)
    with pytest.raises(AgentManagerQueue.Empty):
        queue.get_nowait()
    for number in range(3):
        queue.put(number)
    assert (queue.qsize(), queue.maxlen, queue.behavior_id, queue.num_dropped) == (2, 2, "Ball", 1)
    assert [queue.get_nowait(), queue.get_nowait(), queue.empty()] == [1, 2, True]


def queued() -> tuple[TrajectoryQueue, Trajectory]:
    block = TrajectoryQueue("Ball", HYBRID, wanted=lambda: 4)
    block.begin(1, 0)
    steps = {
        f.OBS: np.arange(12, dtype=np.float32).reshape(2, 3, 2),
        f"{f.ACTION}.0": np.full((2, 3, 1), 0.5, np.float32),
        f"{f.ACTION}.1": np.ones((2, 3, 1), np.int64),
        f.ACTION_MASK: np.tile(np.array([False, True]), (2, 3, 1)),
        **{name: np.arange(6, dtype=np.float32).reshape(2, 3) for name in (f.LOG_PROB, f.VALUE, f.REWARD)},
        GROUP_REWARD: np.ones((2, 3), np.float32),
    }
    closed = Closed(
        slots=np.array([1]),
        ids=np.array([9]),
        lengths=np.array([2]),
        terminated=np.array([False]),
        truncated=np.array([True]),
        begins=np.array([True]),
        group_id=np.array([4]),
        next_obs={f.OBS: np.array([[7.0, 7.5]], np.float32)},
    )
    block.append(closed, steps)
    return block, block._items[0]


def test_a_trajectory_shows_its_steps_and_becomes_a_buffer() -> None:
    _, trajectory = queued()
    assert (len(trajectory), trajectory.agent_id, trajectory.group_id) == (2, "9", 4)
    assert (trajectory.done_reached, trajectory.interrupted) == (True, True)
    first, last = trajectory.steps
    assert first.obs[0].tolist() == [6.0, 7.0]
    assert (first.done, last.done, last.interrupted, last.reward, last.group_reward) == (False, True, True, 4.0, 1.0)
    assert (first.action.continuous.tolist(), first.action.discrete.tolist()) == ([[0.5]], [[1]])
    assert first.action_mask is not None
    assert first.action_mask.tolist() == [True, False], "the first choice was forbidden"
    made = trajectory.to_agentbuffer()
    assert made[ObservationKeyPrefix.NEXT_OBSERVATION, 0].to_ndarray().tolist() == [[8.0, 9.0], [7.0, 7.5]]
    assert made[BufferKey.DONE].to_ndarray().tolist() == [0.0, 1.0]
    assert made.check_length(list(made))


def test_trajectories_that_wait_survive_a_resume() -> None:
    block, trajectory = queued()
    other = TrajectoryQueue("Ball", HYBRID, wanted=lambda: 9)
    other.load_state_dict(block.state_dict())
    assert (other.has_steps, other.num_held, other.num_wanted) == (True, 2, 4)
    restored = other.get_nowait()
    assert all((restored.fields[name] == trajectory.fields[name]).all() for name in trajectory.fields)
    assert (restored.agent_id, restored.interrupted, restored.group_id) == ("9", True, 4)
