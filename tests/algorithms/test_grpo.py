"""GRPO: returns to go, advantages relative to the group, and the price of leaving the reference policy, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.grpo import GRPO, group_relative, returns_to_go
from quintain.algorithms.settings import GRPOSettings
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from tests.algorithms.samples import CHOICES, HYBRID, disturb, estimated, gradients, make_policy, signals


def make(spec: Any = CHOICES, memory: str = "", **settings: Any) -> GRPO:
    grpo = GRPO(GRPOSettings(**settings), make_policy(spec, memory), signals(gamma=0.5), Rng(0))
    grpo.group_size = 2
    return grpo


def columns(*lanes: list[float]) -> np.ndarray:
    return np.array(lanes, np.float32).T


def test_returns_to_go_stop_where_an_episode_does() -> None:
    reward = columns([1, 2, 4], [8, 16, 99])
    valid = np.array([[True, True], [True, True], [True, False]])
    # gamma 0.5: lane 0: 4; 2 + 2 = 4; 1 + 2 = 3. Lane 1 ended after two steps: 16; 8 + 8 = 16.
    assert returns_to_go(reward, valid, 0.5).T.tolist() == [[3, 4, 4], [16, 16, 0]]


def test_advantages_are_relative_to_the_members_that_still_play() -> None:
    to_go = columns([1, 5], [3, 7], [8, 0], [10, 20], [10, 20], [10, 50])
    valid = np.array([[True] * 6, [True, True, False, True, True, True]])
    found = group_relative(to_go, valid, 3)
    # Group 0, step 0: 1, 3, 8 with mean 4 and deviation sqrt((9 + 1 + 16) / 3) = 2.94392.
    # Step 1, two members left: 5 and 7 with mean 6 and deviation 1; who is gone has none.
    # Group 1, step 0: all equal, so nobody did better. Step 1: 20, 20, 50 with mean 30, deviation sqrt(200) = 14.1421.
    expected = [
        [-1.01905, -0.33968, 1.35873, 0, 0, 0],
        [-1, 1, 0, -math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2)],
    ]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found.dtype == np.float32


def test_the_last_member_of_a_group_has_nobody_to_compare_with() -> None:
    valid = np.array([[True, False, False]])
    assert group_relative(columns([7], [0], [0]), valid, 3).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("group_size", [2, 3, 5, 7])
def test_equal_returns_are_equal_whatever_their_mean_rounds_to(group_size: int) -> None:
    returns = np.random.default_rng(0).uniform(0, 100, (50, 1)).astype(np.float32)
    to_go = np.repeat(returns, group_size, axis=1)
    assert not group_relative(to_go, np.ones_like(to_go, bool), group_size).any()


def test_estimating_writes_both_and_bootstraps_nothing() -> None:
    grpo = make()
    batch = estimated(grpo, invalid=((1, 4), (1, 5)))
    rollout = batch.rollout
    reward, valid = rollout.array(f.REWARD)[:-1], rollout.array(f.VALID)[:-1]
    expected = np.zeros((6, 4))
    for lane in range(4):
        for t in range(6):
            later = range(t, 6 if lane != 1 else 4)
            expected[t, lane] = sum(0.5 ** (k - t) * reward[k, lane] for k in later)
    np.testing.assert_allclose(rollout.array(f.RETURN)[:-1], expected, atol=1e-5)
    # In pairs of equal members the advantages are -1 and 1; where one is gone, 0.
    advantage = rollout.array(f.ADVANTAGE)[:-1]
    np.testing.assert_allclose(advantage[:, 2:].sum(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(np.abs(advantage[:, 2:]), 1, atol=1e-4)
    assert not advantage[4:, :2].any()
    assert valid.sum() == 22


def minibatch_of(grpo: GRPO, **options: Any) -> dict[str, torch.Tensor]:
    (minibatch,) = grpo.minibatches(estimated(grpo, **options), 99, 0, 0)
    return {name: field.clone() for name, field in minibatch.items()}


@pytest.mark.parametrize("memory", ["", "lstm"])
@torch.no_grad()
def test_the_loss_is_the_clipped_surrogate_and_the_price_of_leaving_the_reference(memory: str) -> None:
    grpo = make(HYBRID, memory, kl_coef=0.3, entropy_coef=0.01)
    before = make_policy(HYBRID, memory)
    options = {"invalid": ((1, 4), (1, 5)), "first": tuple((lane, 0) for lane in range(4))}
    minibatch = minibatch_of(grpo, **options)
    disturb(grpo.policy)
    loss = grpo.loss(minibatch, 0.0)
    now, then = grpo.policy.evaluate_actions(minibatch), before.evaluate_actions(minibatch)
    keep = minibatch.get(f.VALID, torch.ones(len(minibatch[f.LOG_PROB]), dtype=torch.bool))
    surrogates, prices = [], []
    for i in keep.nonzero().ravel().tolist():
        advantage = float(minibatch[f.ADVANTAGE][i])
        ratio = math.exp(float(now[f.LOG_PROB][i]) - float(minibatch[f.LOG_PROB][i]))
        surrogates.append(min(advantage * ratio, advantage * min(max(ratio, 0.8), 1.2)))
        gap = float(then[f.LOG_PROB][i]) - float(now[f.LOG_PROB][i])
        prices.append(math.exp(gap) - gap - 1)
    assert len(surrogates) == 22
    assert loss.parts["train/policy_loss"] == pytest.approx(-np.mean(surrogates), abs=1e-5)
    assert loss.parts["train/reference_kl"] == pytest.approx(np.mean(prices), rel=1e-4)
    entropy = float(now[f.ENTROPY][keep].mean())
    expected = -np.mean(surrogates) + 0.3 * np.mean(prices) - 0.01 * entropy
    assert float(loss.total) == pytest.approx(expected, abs=1e-5)
    assert np.mean(prices) > 1e-3


def test_at_the_start_the_policy_is_its_own_reference_and_only_that_stays() -> None:
    grpo = make(kl_coef=1.0)
    minibatch = minibatch_of(grpo)
    assert float(grpo.loss(minibatch, 0.0).parts["train/reference_kl"]) == pytest.approx(0.0, abs=1e-6)
    reference = {name: value.clone() for name, value in grpo.reference.state_dict().items()}
    grpo.update(estimated(grpo), Progress(1000))
    assert grpo.loss(minibatch, 0.0).parts["train/reference_kl"] > 0
    for name, value in grpo.reference.state_dict().items():
        assert torch.equal(value, reference[name])
    assert not any(parameter.requires_grad for parameter in grpo.reference.parameters())
    assert len(gradients(grpo)) == sum(parameter.numel() for parameter in grpo.policy.parameters())


def test_the_reference_is_part_of_the_state() -> None:
    grpo, restored = make(kl_coef=1.0), make(kl_coef=1.0)
    disturb(grpo.policy)
    grpo.begin_from_policy()
    restored.load_state_dict(grpo.state_dict())
    for name, value in grpo.policy.state_dict().items():
        assert torch.equal(restored.reference.state_dict()[name], value)


def test_without_a_price_there_is_no_reference() -> None:
    grpo = make()
    assert grpo.reference is None
    grpo.begin_from_policy()
    assert "train/reference_kl" not in grpo.loss(minibatch_of(grpo), 0.0).parts
