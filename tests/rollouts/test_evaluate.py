"""Evaluation plays an equal share in every lane, from the same starts, and touches nothing."""

from __future__ import annotations

import itertools
import time

import gymnasium
import numpy as np
import pytest
import torch

from quintain.core.rng import Rng
from quintain.data.rollout import Slot
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.gym.vector import VectorEnv
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.rollouts.evaluate import EpisodeResults, Evaluator
from tests.playing import played
from tests.scripted import MODES, Episode, LinearPolicy, never, scripted_env

SCRIPT = [
    [Episode(1, "terminated"), Episode(2, "truncated"), Episode(3, "both")],
    [Episode(2, "truncated")],
    [Episode(3, "terminated")],
]


def cartpole(num_lanes: int = 3) -> LaneEnv:
    return LaneEnv("CartPole-v1", [lambda: gymnasium.make("CartPole-v1", max_episode_steps=40)] * num_lanes, Rng(4))


def acting(env: LaneEnv | VectorEnv, seed: int = 1) -> ActorCritic:
    return ActorCritic(ActorCriticSettings(hidden_sizes=(8,)), env.spec, Rng(seed))


@pytest.mark.parametrize("mode", MODES)
def test_every_lane_plays_its_share_however_short_the_others_are(mode: str) -> None:
    env = scripted_env(SCRIPT, mode)
    results = played(Evaluator(env, 7, Rng(0)), LinearPolicy(env.spec), deterministic=True, should_stop=never)
    # Seven episodes over three lanes: 3, 2 and 2.
    assert results.lengths.tolist() == [1, 2, 3, 2, 2, 3, 3]
    # Rewards are 1 + lane + k/2 - e/4. Lane 0: 1 | 0.75 + 1.25 | 0.5 + 1 + 1.5.
    # Lane 1: 2 + 2.5 | 1.75 + 2.25. Lane 2: 3 + 3.5 + 4 | 2.75 + 3.25 + 3.75.
    assert results.returns.tolist() == [1.0, 2.0, 3.0, 4.5, 4.0, 10.5, 9.75]


def test_fewer_episodes_than_lanes_leave_some_lanes_out() -> None:
    env = scripted_env(SCRIPT, "SameStep")
    results = played(Evaluator(env, 2, Rng(0)), LinearPolicy(env.spec), deterministic=True, should_stop=never)
    assert results.lengths.tolist() == [1, 2]


def test_results_summarise_themselves() -> None:
    results = EpisodeResults(np.array([1.0, 3.0]), np.array([10, 20]))
    assert (results.mean_return, results.std_return, results.mean_length) == (2.0, 1.0, 15.0)


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_same_policy_meets_the_same_episodes_every_time(deterministic: bool) -> None:
    env = cartpole()
    evaluator, policy = Evaluator(env, 8, Rng(3)), acting(env)
    first, second = (played(evaluator, policy, deterministic=deterministic, should_stop=never) for _ in range(2))
    np.testing.assert_array_equal(first.returns, second.returns)
    np.testing.assert_array_equal(first.lengths, second.lengths)
    other_env = cartpole()
    again = played(Evaluator(other_env, 8, Rng(3)), acting(other_env), deterministic=deterministic, should_stop=never)
    np.testing.assert_array_equal(first.returns, again.returns)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_vector_environments_begin_again_too(mode: str) -> None:
    env = scripted_env(SCRIPT, mode)
    evaluator, policy = Evaluator(env, 7, Rng(0)), LinearPolicy(env.spec)
    first, second = (played(evaluator, policy, deterministic=True, should_stop=never) for _ in range(2))
    np.testing.assert_array_equal(first.returns, second.returns)


class KeepsNoise(LinearPolicy):
    """Remembers the random numbers it was given."""

    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        super().act(slot, state, deterministic=deterministic)
        self.__dict__.setdefault("given", []).append(slot.noise.clone())


def test_every_step_of_a_long_evaluation_has_its_own_random_numbers() -> None:
    env = scripted_env([[Episode(200, "terminated")]] * 2, "SameStep")
    policy = KeepsNoise(env.spec)
    played(Evaluator(env, 2, Rng(3)), policy, deterministic=False, should_stop=never)
    given = torch.stack(policy.given)
    assert given.shape == (200, 2, 1)
    assert len(given.unique()) == 400


def test_a_stop_gives_no_result_and_the_next_evaluation_is_whole() -> None:
    env = cartpole()
    evaluator, policy = Evaluator(env, 5, Rng(3)), acting(env)
    expected = played(evaluator, policy, deterministic=True, should_stop=never)
    answers = iter([False] * 7 + [True])
    assert played(evaluator, policy, deterministic=True, should_stop=lambda: next(answers)) is None
    again = played(evaluator, policy, deterministic=True, should_stop=never)
    np.testing.assert_array_equal(again.returns, expected.returns)


def test_evaluation_leaves_the_policy_as_it_was() -> None:
    env = cartpole()
    policy = acting(env)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    played(Evaluator(env, 3, Rng(3)), policy, deterministic=False, should_stop=never)
    assert all(torch.equal(policy.state_dict()[name], value) for name, value in before.items())


class Endless(gymnasium.Env[np.ndarray, int]):
    """Never ends; its observation and reward say how many steps the episode has."""

    observation_space = gymnasium.spaces.Box(0.0, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.age += 1
        return np.full(1, self.age, np.float32), float(self.age), False, False, {}


def endless(num_lanes: int) -> LaneEnv:
    return LaneEnv("Endless", [Endless] * num_lanes, Rng(4))


def test_episodes_that_do_not_end_are_cut_and_the_next_ones_begin_anew() -> None:
    env = endless(2)
    results = played(Evaluator(env, 3, Rng(0), max_episode_steps=4), acting(env), deterministic=True, should_stop=never)
    assert results.lengths.tolist() == [4, 4, 4]
    # Rewards of an episode are 1, 2, 3 and 4.
    assert results.returns.tolist() == [10.0, 10.0, 10.0]
    assert results.num_cut == 3
    assert results.cut_note == "3 of 3 episodes did not end and were cut after 4 steps"


def test_a_lane_that_cannot_be_reset_plays_no_further_episode_after_a_cut() -> None:
    vector = gymnasium.vector.SyncVectorEnv([Endless, Endless])
    env = VectorEnv("Endless", vector, Rng(4))
    results = played(Evaluator(env, 4, Rng(0), max_episode_steps=3), acting(env), deterministic=True, should_stop=never)
    # The second episode of each lane would begin in the middle of the first.
    assert (results.returns.tolist(), results.num_cut) == ([6.0, 6.0], 2)


def test_only_episodes_that_are_too_long_are_cut() -> None:
    env = scripted_env(SCRIPT, "lanes")
    results = played(
        Evaluator(env, 3, Rng(0), max_episode_steps=3), LinearPolicy(env.spec), deterministic=True, should_stop=never
    )
    # An episode that ends at the limit ended by itself.
    assert (results.lengths.tolist(), results.num_cut) == ([1, 2, 3], 0)


def test_a_long_evaluation_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0.0, 6.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    env, told = endless(2), []
    played(
        Evaluator(env, 4, Rng(0), max_episode_steps=200),
        acting(env),
        deterministic=True,
        should_stop=never,
        tell=told.append,
    )
    # It looks every 64 steps: the clock, which moves by 6 s at each look, passes 10 s at the second.
    assert told[0] == "note: evaluating, 0 of 4 episodes after 64 steps; an episode is cut after 200"
    assert told[-1].startswith("note: evaluating, 2 of 4 episodes after")
