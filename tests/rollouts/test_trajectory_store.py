"""Trajectories wait until there are enough of them, are learned from once, and survive a resume."""

from __future__ import annotations

import numpy as np

from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, box
from quintain.data.trajectory import GROUP_REWARD, Closed, TrajectoryBlock
from quintain.rollouts.settings import TrajectorySettings
from quintain.rollouts.store import RolloutBuffer

SPEC = BehaviorSpec(obs=box(1), action=box(1))


def store(buffer_size: int = 5) -> RolloutBuffer:
    return RolloutBuffer(TrajectoryBlock(SPEC, 4), settings=TrajectorySettings(buffer_size=buffer_size, time_horizon=3))


def add(block: TrajectoryBlock, length: int, *, value: float = 1.0) -> None:
    """Appends one trajectory of an agent whose episode was interrupted."""
    steps = {name: np.full((1, 3), value, np.float32) for name in (f.REWARD, GROUP_REWARD, f.VALUE, f.LOG_PROB)}
    steps |= {name: np.full((1, 3, 1), value, np.float32) for name in (f.OBS, f.ACTION)}
    one = np.ones(1, np.bool_)
    closed = Closed(
        slots=np.zeros(1, np.int64),
        ids=np.zeros(1, np.int64),
        lengths=np.array([length]),
        terminated=~one,
        truncated=one,
        begins=one,
        group_id=np.zeros(1, np.int64),
        next_obs={f.OBS: np.array([[value + 0.5]], np.float32)},
    )
    block.append(closed, steps)


def fill(buffer: RolloutBuffer, *lengths: int) -> TrajectoryBlock:
    assert buffer.reserve() is buffer.trajectories
    for length in lengths:
        add(buffer.trajectories, length)
    return buffer.trajectories


def test_it_is_full_when_whole_trajectories_reach_its_size() -> None:
    buffer = store()
    block = fill(buffer, 3)
    assert not buffer.is_full
    assert buffer.utilisation == 3 / 5
    add(block, 3)
    assert buffer.is_full
    assert not buffer.ready(), "nobody has committed it"
    block.seal()
    buffer.commit(block)
    batch = buffer.take()
    assert (batch.num_valid, batch.num_episodes) == (6, 2)
    assert batch.valid_obs()[f.OBS].shape == (6, 1)


def test_what_was_learned_from_makes_room() -> None:
    buffer = store()
    block = fill(buffer, 3, 3)
    block.seal()
    buffer.commit(block)
    assert buffer.reserve() is None
    buffer.take()
    buffer.release()
    assert buffer.reserve() is block
    assert (block.num_steps, block.num_episodes, block.final.count, block.sequence) == (0, 0, 0, 2)


def test_half_full_it_survives_a_resume_and_takes_more() -> None:
    buffer, other = store(), store()
    fill(buffer, 2, 1)
    other.load_state_dict(buffer.state_dict())
    assert other.reserve() is other.trajectories
    for each in (buffer, other):
        add(each.trajectories, 3, value=4.0)
        each.trajectories.seal()
        each.commit(each.trajectories)
        assert each.take().rollout.array(f.OBS)[:-1, 0, 0].tolist() == [1.0, 1.0, 1.0, 4.0, 4.0, 4.0]
        assert each.trajectories.final.array(f.OBS)[:, 0].tolist() == [1.5, 1.5, 4.5]
        # A reward is the agent's own and its group's.
        assert each.trajectories.array(f.REWARD)[:-1, 0].tolist() == [2.0, 2.0, 2.0, 8.0, 8.0, 8.0]


def test_a_state_does_not_depend_on_what_the_memory_held_before() -> None:
    fresh, used = store(), store()
    block = fill(used, 3, 3)
    block.storage[f.ADVANTAGE].fill_(7.0)
    block.seal()
    block.storage[f.ADVANTAGE].fill_(7.0)
    used.commit(block)
    used.take()
    used.release()
    for each in (fresh, used):
        fill(each, 2)
    left, right = (each.state_dict()["blocks"]["0"]["block"]["fields"] for each in (fresh, used))
    assert all(left[name].equal(right[name]) for name in left)
