"""The door opens for whoever holds the key, and what it brings is the group's."""

from __future__ import annotations

from typing import Any

import numpy as np

from quintain.envs.agents.group_tasks import DoorPopulation, TaskEnv, door
from quintain.envs.agents.specs import ActionTuple


def act(env: TaskEnv, tries: Any) -> None:
    """Lets those try the door of whom `tries(agent sees)` says so, and steps."""
    decided, _ = env.get_steps("Door")
    chosen = np.array([[int(tries(seen))] for seen in decided.obs[0]], np.int32)
    env.set_actions("Door", ActionTuple(discrete=chosen))
    env.step()


def holds_key(seen: Any) -> bool:
    return bool(seen[0] == 1.0)


def test_the_holder_of_the_key_opens_the_door_and_leaves() -> None:
    env = door(seed=3, num_groups=1, length=4)
    env.reset()
    before, ended = env.get_steps("Door")
    num_members = len(before)
    assert 2 <= num_members <= 4
    assert before.obs[0][:, 0].sum() == 1.0
    assert len(ended) == 0
    act(env, holds_key)
    after, ended = env.get_steps("Door")
    assert (len(after), len(ended)) == (num_members - 1, 1)
    assert ended.reward.tolist() == [0.0]
    assert ended.group_reward.tolist() == [0.0], "the door was still closed"
    assert not ended.interrupted.any()
    assert (after.reward == np.float32(0.1)).all()
    assert (after.obs[0] == [[0.0, 1.0, 0.25]] * (num_members - 1)).all()
    act(env, lambda seen: False)
    after, ended = env.get_steps("Door")
    assert (after.group_reward == 1.0).all()
    for _ in range(2):
        act(env, lambda seen: False)
    again, ended = env.get_steps("Door")
    # Four steps are over: everybody that was left ends, and others with new ids take their places.
    assert (ended.group_reward == 1.0).all()
    assert len(ended) == num_members - 1
    assert not set(again.agent_id) & set(before.agent_id)
    assert (again.group_reward == 0.0).all()
    assert (again.reward == 0.0).all()
    assert set(again.group_id) == set(before.group_id) == {1}


def test_who_tries_the_door_without_the_key_leaves_for_nothing() -> None:
    env = door(seed=3, num_groups=6, length=8)
    env.reset()
    before, _ = env.get_steps("Door")
    act(env, lambda seen: not holds_key(seen))
    after, ended = env.get_steps("Door")
    assert len(after) == 6, "each group has one that holds its key"
    assert len(ended) == len(before) - 6
    assert (after.obs[0][:, :2] == [1.0, 0.0]).all()
    act(env, lambda seen: True)
    fresh, ended = env.get_steps("Door")
    # Nobody is left to go through: all groups begin anew.
    assert len(ended) == 6
    assert (ended.group_reward == 0.0).all()
    assert len(fresh) >= 12
    assert (fresh.obs[0][:, 1:] == 0.0).all()


def test_groups_have_two_to_four_members() -> None:
    population = DoorPopulation(num_groups=200, seed=0)
    population.reset()
    sizes = population.decides.reshape(200, 4).sum(axis=1)
    assert set(sizes.tolist()) == {2, 3, 4}
    held = population.observe()[:, 0] * population.decides
    assert (held.reshape(200, 4).sum(axis=1) == 1.0).all(), "the holder is present"


def test_its_state_is_complete() -> None:
    env, other = door(seed=3), door(seed=9)
    for each in (env, other):
        each.reset()
    rng = np.random.default_rng(0)
    for _ in range(5):
        act(env, lambda seen: rng.uniform() < 0.3)
    other.load_state_dict(env.state_dict())
    for _ in range(20):
        for each in (env, other):
            act(each, lambda seen: seen[2] > 0.5)
        one, two = env.get_steps("Door"), other.get_steps("Door")
        for mine, theirs in zip(one, two, strict=True):
            assert np.array_equal(mine.agent_id, theirs.agent_id)
            assert np.array_equal(mine.obs[0], theirs.obs[0])
            assert np.array_equal(mine.group_reward, theirs.group_reward)
