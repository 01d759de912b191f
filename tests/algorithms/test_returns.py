"""Advantages are what their definition says, for every way an episode can end and every place where it can.

Scripts run through real environments, the collector and PPO.estimate. Values are a known linear function of the
observation, and an episode's last observation never has the value of the next one's first, so a bootstrap from the
wrong one gives another number.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from quintain.algorithms.ppo import PPO
from quintain.algorithms.returns import explained_variance, generalized_advantages
from quintain.algorithms.settings import PPOSettings
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings
from quintain.rollouts.sync_collector import SyncCollector
from tests.declared import declared
from tests.scripted import (
    ENDS,
    MODES,
    Episode,
    LinearPolicy,
    Row,
    Script,
    expected_rows,
    ignore_episodes,
    never,
    scripted_env,
    value_at,
)

GAMMA, LAMBDA = 0.9, 0.8


def estimated(
    script: Script, mode: str, *, num_steps: int, num_rollouts: int, gamma: float = GAMMA, gae_lambda: float = LAMBDA
) -> list[dict[str, np.ndarray]]:
    """Collects and estimates some rollouts, and gives [N, T+1] copies of their fields."""
    env = scripted_env(script, mode)
    policy = LinearPolicy(env.spec)
    settings = PPOSettings(gae_lambda=gae_lambda, normalize_advantage=False)
    ppo = PPO(settings, policy, {"extrinsic": Extrinsic(ExtrinsicSettings(gamma=gamma))}, Rng(0))
    collector = SyncCollector(env, policy, Rng(0), ignore_episodes)
    rollout = Rollout(env.spec, num_lanes=len(script), num_steps=num_steps, fields=declared())
    collected = []
    for _ in range(num_rollouts):
        assert collector.collect(rollout, 0, never)
        ppo.estimate(Batch(rollout))
        collected.append({name: rollout[name].numpy().copy() for name in rollout.storage})
    return collected


def advantage_by_definition(rows: list[Row], t: int) -> float:
    """Sums the discounted errors from row t to the end of its episode or of the rollout; rows has T+1 entries."""
    if not rows[t].valid:
        return 0.0
    total, weight = 0.0, 1.0
    for row, following in itertools.pairwise(rows[t:]):
        if row.terminated:
            bootstrap = 0.0
        elif row.truncated:
            bootstrap = value_at(*row.final_obs)
        else:
            bootstrap = value_at(*following.obs)
        total += weight * (row.reward + GAMMA * bootstrap - value_at(*row.obs))
        weight *= GAMMA * LAMBDA
        if row.terminated or row.truncated:
            break
    return total


NUM_STEPS = 5
PLACES = {"first": 1, "middle": 3, "last": 5}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("place", PLACES)
def test_advantages_follow_from_the_definition(mode: str, end: str, place: str) -> None:
    # Lane 0 ends where the test wants it; lane 1 ends differently and elsewhere, lane 2 not at all.
    script = [
        [Episode(PLACES[place], end), Episode(2, "truncated"), Episode(4, "terminated")],
        [Episode(2, "truncated"), Episode(1, "terminated")],
        [Episode(99, "terminated")],
    ]
    collected = estimated(script, mode, num_steps=NUM_STEPS, num_rollouts=4)
    for lane, episodes in enumerate(script):
        rows = expected_rows(lane, episodes, 4 * NUM_STEPS + 1, mode)
        for number, fields in enumerate(collected):
            part = rows[number * NUM_STEPS : (number + 1) * NUM_STEPS + 1]
            expected = [advantage_by_definition(part, t) for t in range(NUM_STEPS)]
            np.testing.assert_allclose(fields[f.ADVANTAGE][lane, :NUM_STEPS], expected, atol=2e-6, err_msg=f"{number}")
            valid = [row.valid for row in part[:NUM_STEPS]]
            returns = [advantage + value_at(*row.obs) for advantage, row in zip(expected, part, strict=False)]
            np.testing.assert_allclose(
                fields[f.RETURN][lane, :NUM_STEPS][valid], np.array(returns)[valid], atol=2e-6, err_msg=f"{number}"
            )
            assert fields[f.VALID][lane, :NUM_STEPS].tolist() == valid


@pytest.mark.parametrize("mode", ["lanes", "SameStep", "Disabled"])
@pytest.mark.parametrize(
    ("end", "expected"),
    # gamma = lambda = 0.5, so gamma * lambda = 0.25. r = 1 + k/2 - e/4 and V = 1 + e + k/4 of episode e, step k.
    # t = 0: e0 k0, r = 1,    V = 1,    next V = 1.25:      delta = 1 + 0.5 * 1.25 - 1       =  0.625
    # t = 1: e0 k1, r = 1.5,  V = 1.25, ends in e0 k2:
    #        cut, V(e0 k2) = 1.5:                           delta = 1.5 + 0.5 * 1.5 - 1.25   =  1.0
    #        over:                                          delta = 1.5 + 0 - 1.25           =  0.25
    #        (from the reset observation e1 k0, V = 2, it would be 1.25)
    # t = 2: e1 k0, r = 0.75, V = 2,    next V = 2.25:      delta = 0.75 + 0.5 * 2.25 - 2    = -0.125
    # A2 = -0.125; A1 = its delta; A0 = 0.625 + 0.25 * A1.
    [
        ("truncated", [0.875, 1.0, -0.125]),
        ("terminated", [0.6875, 0.25, -0.125]),
        ("both", [0.6875, 0.25, -0.125]),
    ],
)
def test_three_steps_by_hand(mode: str, end: str, expected: list[float]) -> None:
    script = [[Episode(2, end), Episode(9, "terminated")]]
    (fields,) = estimated(script, mode, num_steps=3, num_rollouts=1, gamma=0.5, gae_lambda=0.5)
    assert fields[f.ADVANTAGE][0, :3].tolist() == expected
    # Returns are advantage + value, with values 1, 1.25 and 2.
    assert fields[f.RETURN][0, :3].tolist() == [expected[0] + 1.0, expected[1] + 1.25, expected[2] + 2.0]


def test_three_steps_by_hand_with_a_reset_between() -> None:
    # As above and cut at t = 1. t = 2 only resets: it has advantage 0 and passes nothing to t = 1.
    # t = 3: e1 k0, r = 0.75, V = 2, next V = 2.25: -0.125.
    script = [[Episode(2, "truncated"), Episode(9, "terminated")]]
    (fields,) = estimated(script, "NextStep", num_steps=4, num_rollouts=1, gamma=0.5, gae_lambda=0.5)
    assert fields[f.ADVANTAGE][0, :4].tolist() == [0.875, 1.0, 0.0, -0.125]
    assert fields[f.VALID][0, :4].tolist() == [True, True, False, True]


def arrays(*columns: list[float]) -> list[np.ndarray]:
    return [np.array(column, np.float32)[:, None] for column in columns]


def test_lambda_one_gives_discounted_returns_and_lambda_zero_one_step_errors() -> None:
    reward, value, final = arrays([1, 2, 3], [10, 20, 30, 40], [0, 0, 0])
    no, yes = np.zeros((3, 1), bool), np.ones((3, 1), bool)
    # lambda 1: A_t = sum of gamma^k r + gamma^(3-t) V_3 - V_t, gamma = 0.5.
    # t = 2: 3 + 20 - 30 = -7; t = 1: 2 + 1.5 + 10 - 20 = -6.5; t = 0: 1 + 1 + 0.75 + 5 - 10 = -2.25
    ones = generalized_advantages(reward, value, final, no, no, yes, gamma=0.5, gae_lambda=1.0)
    assert ones.ravel().tolist() == [-2.25, -6.5, -7.0]
    # lambda 0: r + 0.5 V' - V: 1 + 10 - 10 = 1; 2 + 15 - 20 = -3; 3 + 20 - 30 = -7
    zeros = generalized_advantages(reward, value, final, no, no, yes, gamma=0.5, gae_lambda=0.0)
    assert zeros.ravel().tolist() == [1.0, -3.0, -7.0]


def test_nothing_follows_a_true_end_whatever_its_last_observation_is_worth() -> None:
    reward, value, final = arrays([1], [10, 20], [100])
    yes = np.ones((1, 1), bool)
    # Terminated: 1 + 0 - 10. Only cut: 1 + 0.5 * 100 - 10.
    over = generalized_advantages(reward, value, final, yes, yes, yes, gamma=0.5, gae_lambda=0.5)
    cut = generalized_advantages(reward, value, final, ~yes, yes, yes, gamma=0.5, gae_lambda=0.5)
    assert (over.item(), cut.item()) == (-9.0, 41.0)


def test_inputs_are_left_as_they_were() -> None:
    given = arrays([1, 2], [1, 2, 3], [0, 5])
    copies = [array.copy() for array in given]
    done = np.array([[False], [True]])
    generalized_advantages(*given, ~done & done, done, done | ~done, gamma=0.9, gae_lambda=0.9)
    for array, copy in zip(given, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_explained_variance() -> None:
    target = np.array([1.0, 2.0, 3.0, 4.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(np.full(4, 7.0), target) == 0.0
    # Errors 0, 1, 0, 1 have variance 0.25; the target's is 1.25: 1 - 0.2.
    assert explained_variance(np.array([1.0, 1.0, 3.0, 3.0]), target) == pytest.approx(0.8)
    assert np.isnan(explained_variance(target, np.ones(4)))
