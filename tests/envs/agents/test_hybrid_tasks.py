"""Parcels count where the number brought the courier near enough and the choice is the right chute."""

from __future__ import annotations

import numpy as np

from quintain.envs.agents.hybrid_tasks import couriers
from quintain.envs.agents.specs import ActionTuple
from quintain.envs.agents.tasks import TaskEnv


def carried(offset: list[float], kind: list[int], length: int = 20) -> TaskEnv:
    """Returns couriers that stand where they are told."""
    env = couriers(seed=1, num_agents=len(offset), length=length)
    env.reset()
    population = env.populations["Courier"]
    population.offset[:] = offset
    population.kind[:] = kind
    return env


def act(env: TaskEnv, numbers: list[float], choices: list[int]) -> None:
    env.set_actions("Courier", ActionTuple(np.array([numbers], np.float32).T, np.array([choices], np.int32).T))
    env.step()


def test_a_step_is_as_long_as_the_number_says_within_bounds() -> None:
    env = carried([0.8, -0.8, 0.9], [0, 1, 1])
    act(env, [1.0, 0.5, -9.0], [0, 0, 0])
    decided, ended = env.get_steps("Courier")
    # A stride is 0.25; nobody walks farther, and nobody leaves the line.
    assert np.allclose(decided.obs[0][:, 0], [0.55, -0.925, 1.0])
    assert decided.obs[0][:, 1:].tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    assert decided.reward.tolist() == [0.0, 0.0, 0.0]
    assert len(ended) == 0


def test_only_the_right_chute_within_reach_pays() -> None:
    env = carried([0.1, -0.1, 0.1, 0.2, 0.5], [0, 1, 0, 0, 1])
    act(env, [1.0] * 5, [1, 2, 2, 1, 0])
    decided, _ = env.get_steps("Courier")
    assert np.allclose(decided.reward, [1.0, 1.0, -0.2, -0.2, 0.0])
    # Who dropped a parcel has another one, elsewhere; the last one walked on with its own.
    assert not np.isclose(decided.obs[0][:4, 0], [0.1, -0.1, 0.1, 0.2]).any()
    assert np.isclose(decided.obs[0][4, 0], 0.25)


def test_a_shift_is_cut_for_everybody_at_once() -> None:
    env = carried([0.5] * 6, [0] * 6, length=2)
    before, _ = env.get_steps("Courier")
    assert before.group_id.tolist() == [1, 1, 1, 2, 2, 2]
    for _ in range(2):
        act(env, [0.0] * 6, [0] * 6)
    after, ended = env.get_steps("Courier")
    assert ended.agent_id.tolist() == before.agent_id.tolist()
    assert ended.interrupted.all()
    assert not set(after.agent_id) & set(before.agent_id)


def test_its_state_is_complete() -> None:
    env, other = couriers(seed=3), couriers(seed=9)
    rng = np.random.default_rng(0)
    plan = [(rng.uniform(-1, 1, 12).tolist(), rng.integers(0, 3, 12).tolist()) for _ in range(60)]
    for each in (env, other):
        each.reset()
    for numbers, choices in plan[:5]:
        act(env, numbers, choices)
    other.load_state_dict(env.state_dict())
    for numbers, choices in plan[5:]:
        for each in (env, other):
            act(each, numbers, choices)
        for mine, theirs in zip(env.get_steps("Courier"), other.get_steps("Courier"), strict=True):
            assert np.array_equal(mine.agent_id, theirs.agent_id)
            assert np.array_equal(mine.obs[0], theirs.obs[0])
            assert np.array_equal(mine.reward, theirs.reward)
