"""A step in which an environment broke counts for nothing, and the one before it is bootstrapped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.returns import generalized_advantages
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.envs.base import StepResult
from quintain.rollouts.evaluate import Evaluator
from quintain.rollouts.sync_collector import SyncCollector
from quintain.testing import Episode, ScriptedEnv
from tests.playing import played
from tests.scripted import LinearPolicy, never, value_at

BREAKS_AT = 2


class Breaks(ScriptedEnv):
    """Lane 0 breaks once, at the third step of all, and begins another episode there."""

    def __init__(self) -> None:
        super().__init__([Episode([1.0] * 6)], [Episode([2.0] * 4, "truncated")])
        self.num_steps = 0

    def step(self, action: torch.Tensor) -> StepResult:
        self.num_steps += 1
        if self.num_steps != BREAKS_AT + 1:
            return super().step(action)
        aborted = np.array([True, False])
        result = super().step(action)
        obs = self.reset(aborted)
        return result._replace(obs=obs, reward=np.where(aborted, np.float32(0), result.reward), aborted=aborted)


def collect(*, starts_fresh: bool = False) -> tuple[Rollout, list[tuple[list[float], list[int]]]]:
    env = Breaks()
    policy = LinearPolicy(env.spec)
    heard: list[tuple[list[float], list[int]]] = []
    collector = SyncCollector(
        env,
        policy,
        Rng(0),
        lambda returns, lengths: heard.append((returns.tolist(), lengths.tolist())),
        starts_fresh=starts_fresh,
    )
    rollout = Rollout(env.spec, num_lanes=2, num_steps=6, fields=policy.declare_fields())
    assert collector.collect(rollout, 0, never)
    return rollout, heard


def test_the_broken_step_is_not_valid_and_what_follows_begins_an_episode() -> None:
    rollout, heard = collect()
    assert rollout.array(f.VALID)[:-1, 0].tolist() == [True, True, False, True, True, True]
    assert rollout.array(f.VALID)[:-1, 1].all()
    assert rollout.array(f.FIRST)[:, 0].tolist() == [True, False, False, True, False, False, False]
    assert rollout.array(f.FIRST)[:, 1].tolist() == [True, False, False, False, True, False, False]
    assert not rollout.array(f.DONE)[:, 0].any()
    # Lane 0 is in episode 1 after the break, at its first step.
    assert rollout.array(f.OBS)[3, 0].tolist() == [0.0, 1.0, 0.0]
    assert Batch(rollout).num_valid == 11
    # Lane 1 ended its episode; what lane 0 had collected before it broke is nobody's return.
    assert heard == [([8.0], [4])]


def test_the_step_before_is_worth_its_reward_and_the_value_of_where_it_led() -> None:
    rollout, _ = collect()
    gamma, gae_lambda = 0.5, 0.25
    advantage = generalized_advantages(
        *(rollout.array(name)[:-1] for name in (f.REWARD,)),
        rollout.array(f.VALUE),
        *(rollout.array(name)[:-1] for name in (f.FINAL_VALUE, f.TERMINATED, f.DONE, f.VALID)),
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    values = [value_at(0, 0, step) for step in range(3)]
    # Closed as a time-out after step 1: nothing of the broken step or of the next episode reaches it.
    second = 1.0 + gamma * values[2] - values[1]
    first = 1.0 + gamma * values[1] - values[0] + gamma * gae_lambda * second
    assert advantage[:3, 0].tolist() == pytest.approx([first, second, 0.0])


def test_where_whole_episodes_are_compared_the_cut_one_is_left_out() -> None:
    rollout, _ = collect(starts_fresh=True)
    assert rollout.array(f.VALID)[:-1, 0].tolist() == [False, False, False, True, True, True]


def test_an_evaluation_plays_another_episode_in_place_of_the_broken_one() -> None:
    env = Breaks()
    results = played(Evaluator(env, 2, Rng(0)), LinearPolicy(env.spec), deterministic=True, should_stop=never)
    assert results is not None
    assert results.returns.tolist() == [6.0, 8.0]
    assert results.lengths.tolist() == [6, 4]


def test_the_script_itself_breaks_once() -> None:
    env: Any = Breaks()
    env.reset()
    assert [env.step(torch.zeros(2)).aborted is not None for _ in range(5)] == [False, False, True, False, False]
