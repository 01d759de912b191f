"""Evaluation plays an equal share in every lane, from the same starts, and touches nothing."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from quintain.data.rollout import Slot
from quintain.envs.gymnasium_lanes import LaneEnv
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.rng import Rng
from quintain.rollouts.evaluate import EpisodeResults, Evaluator
from tests.scripted import MODES, Episode, LinearPolicy, never, scripted_env

SCRIPT = [
    [Episode(1, "terminated"), Episode(2, "truncated"), Episode(3, "both")],
    [Episode(2, "truncated")],
    [Episode(3, "terminated")],
]


def cartpole(num_lanes: int = 3) -> LaneEnv:
    return LaneEnv("CartPole-v1", [lambda: gymnasium.make("CartPole-v1", max_episode_steps=40)] * num_lanes, Rng(4))


def acting(env: LaneEnv, seed: int = 1) -> ActorCritic:
    return ActorCritic(ActorCriticSettings(hidden_sizes=(8,)), env.spec, Rng(seed))


@pytest.mark.parametrize("mode", MODES)
def test_every_lane_plays_its_share_however_short_the_others_are(mode: str) -> None:
    env = scripted_env(SCRIPT, mode)
    results = Evaluator(env, 7, Rng(0)).play(LinearPolicy(env.spec), deterministic=True, should_stop=never)
    # Seven episodes over three lanes: 3, 2 and 2.
    assert results.lengths.tolist() == [1, 2, 3, 2, 2, 3, 3]
    # Rewards are 1 + lane + k/2 - e/4. Lane 0: 1 | 0.75 + 1.25 | 0.5 + 1 + 1.5.
    # Lane 1: 2 + 2.5 | 1.75 + 2.25. Lane 2: 3 + 3.5 + 4 | 2.75 + 3.25 + 3.75.
    assert results.returns.tolist() == [1.0, 2.0, 3.0, 4.5, 4.0, 10.5, 9.75]


def test_fewer_episodes_than_lanes_leave_some_lanes_out() -> None:
    env = scripted_env(SCRIPT, "SameStep")
    results = Evaluator(env, 2, Rng(0)).play(LinearPolicy(env.spec), deterministic=True, should_stop=never)
    assert results.lengths.tolist() == [1, 2]


def test_results_summarise_themselves() -> None:
    results = EpisodeResults(np.array([1.0, 3.0]), np.array([10, 20]))
    assert (results.mean_return, results.std_return, results.mean_length) == (2.0, 1.0, 15.0)


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_same_policy_meets_the_same_episodes_every_time(deterministic: bool) -> None:
    env = cartpole()
    evaluator, policy = Evaluator(env, 8, Rng(3)), acting(env)
    first, second = (evaluator.play(policy, deterministic=deterministic, should_stop=never) for _ in range(2))
    np.testing.assert_array_equal(first.returns, second.returns)
    np.testing.assert_array_equal(first.lengths, second.lengths)
    other_env = cartpole()
    again = Evaluator(other_env, 8, Rng(3)).play(acting(other_env), deterministic=deterministic, should_stop=never)
    np.testing.assert_array_equal(first.returns, again.returns)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_vector_environments_begin_again_too(mode: str) -> None:
    env = scripted_env(SCRIPT, mode)
    evaluator, policy = Evaluator(env, 7, Rng(0)), LinearPolicy(env.spec)
    first, second = (evaluator.play(policy, deterministic=True, should_stop=never) for _ in range(2))
    np.testing.assert_array_equal(first.returns, second.returns)


class KeepsNoise(LinearPolicy):
    """Remembers the random numbers it was given."""

    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        super().act(slot, state, deterministic=deterministic)
        self.__dict__.setdefault("given", []).append(slot.noise.clone())


def test_every_step_of_a_long_evaluation_has_its_own_random_numbers() -> None:
    env = scripted_env([[Episode(200, "terminated")]] * 2, "SameStep")
    policy = KeepsNoise(env.spec)
    Evaluator(env, 2, Rng(3)).play(policy, deterministic=False, should_stop=never)
    given = torch.stack(policy.given)
    assert given.shape == (200, 2, 1)
    assert len(given.unique()) == 400


def test_a_stop_gives_no_result_and_the_next_evaluation_is_whole() -> None:
    env = cartpole()
    evaluator, policy = Evaluator(env, 5, Rng(3)), acting(env)
    expected = evaluator.play(policy, deterministic=True, should_stop=never)
    answers = iter([False] * 7 + [True])
    assert evaluator.play(policy, deterministic=True, should_stop=lambda: next(answers)) is None
    again = evaluator.play(policy, deterministic=True, should_stop=never)
    np.testing.assert_array_equal(again.returns, expected.returns)


def test_evaluation_leaves_the_policy_as_it_was() -> None:
    env = cartpole()
    policy = acting(env)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    Evaluator(env, 3, Rng(3)).play(policy, deterministic=False, should_stop=never)
    assert all(torch.equal(policy.state_dict()[name], value) for name, value in before.items())
