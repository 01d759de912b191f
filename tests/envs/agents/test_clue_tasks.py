"""Clues name the end of a line to walk to: shown as a number or in images, always or only at the beginning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quintain.envs.agents.clue_tasks import clues
from quintain.envs.agents.specs import ActionTuple
from quintain.envs.agents.tasks import TaskEnv


def begun(clue: list[float], **kwargs: Any) -> TaskEnv:
    """Returns agents that are given these clues."""
    env = clues(seed=1, num_agents=len(clue), **kwargs)
    env.reset()
    env.populations["Clue"].clue[:] = clue  # type: ignore[attr-defined]
    return env


def act(env: TaskEnv, numbers: list[list[float]], choices: list[list[int]]) -> None:
    env.set_actions("Clue", ActionTuple(np.array(numbers, np.float32), np.array(choices, np.int32)))
    env.step()


def test_the_end_that_the_clue_names_pays_and_the_other_costs() -> None:
    env = begun([1.0, -1.0, 1.0], num_continuous=0, num_choices=1, stride=0.5)
    act(env, [[], [], []], [[1], [1], [0]])
    decided, ended = env.get_steps("Clue")
    assert len(ended) == 0
    assert decided.reward.tolist() == pytest.approx([-0.01] * 3)
    assert decided.obs[0].tolist() == [[1.0], [-1.0], [1.0]]
    act(env, [[], [], []], [[1], [1], [1]])
    decided, ended = env.get_steps("Clue")
    # The third went back to the middle.
    assert ended.reward.tolist() == [1.0, -1.0]
    assert ended.obs[0].tolist() == [[1.0], [-1.0]]
    assert not ended.interrupted.any()
    assert decided.reward.tolist() == pytest.approx([0.0, 0.0, -0.01])


def test_a_number_and_a_choice_walk_lines_of_their_own() -> None:
    env = begun([1.0], num_choices=1, stride=0.5)
    # The choice is at its end after two steps, the number goes 0.3 and then, at most, 0.5.
    for number in (0.3, 9.0):
        act(env, [[number]], [[0]])
    assert len(env.get_steps("Clue")[1]) == 0
    act(env, [[0.5]], [[0]])
    _, ended = env.get_steps("Clue")
    # One line at the right end, the other at the wrong one.
    assert ended.reward.tolist() == [0.0]


def test_a_clue_may_be_hidden_after_some_steps() -> None:
    env = begun([-1.0], num_shown=2)
    seen = []
    for _ in range(4):
        seen.append(float(env.get_steps("Clue")[0].obs[0][0, 0]))
        act(env, [[0.1]], [[]])
    assert seen == [-1.0, -1.0, 0.0, 0.0]


def test_images_are_filled_with_the_clue() -> None:
    env = begun([1.0, -1.0], num_images=2, stride=1.0)
    assert [spec.shape for spec in env.behavior_specs["Clue"].observation_specs] == [(20, 20, 3)] * 2
    decided, ended = env.get_steps("Clue")
    for image in decided.obs:
        assert image.shape == (2, 20, 20, 3)
        assert (image[0] == 1.0).all()
        assert (image[1] == -1.0).all()
    assert [image.shape for image in ended.obs] == [(0, 20, 20, 3)] * 2
    act(env, [[1.0], [0.5]], [[], []])
    assert [image.shape for image in env.get_steps("Clue")[1].obs] == [(1, 20, 20, 3)] * 2


def test_who_stays_in_the_middle_is_interrupted() -> None:
    env = begun([1.0])
    for _ in range(100):
        assert len(env.get_steps("Clue")[1]) == 0
        act(env, [[0.0]], [[]])
    _, ended = env.get_steps("Clue")
    assert ended.interrupted.tolist() == [True]


def test_its_state_is_complete() -> None:
    first, second = (clues(seed=seed, num_agents=3, num_images=1, num_shown=2) for seed in (1, 2))
    for env in (first, second):
        env.reset()
    act(first, [[0.2], [0.1], [0.0]], [[], [], []])
    second.load_state_dict(first.state_dict())
    for _ in range(8):
        for env in (first, second):
            act(env, [[0.2], [0.2], [-0.2]], [[], [], []])
        for mine, theirs in zip(first.get_steps("Clue"), second.get_steps("Clue"), strict=True):
            assert np.array_equal(mine.agent_id, theirs.agent_id)
            assert np.array_equal(mine.obs[0], theirs.obs[0])
            assert np.array_equal(mine.reward, theirs.reward)
