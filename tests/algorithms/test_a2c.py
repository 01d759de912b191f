"""A2C against an independent loss with torch.distributions and autograd, and one step of torch's own Adam."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from quintain.algorithms.a2c import A2C
from quintain.algorithms.settings import A2CSettings
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from tests.algorithms.samples import CHOICES, estimated, make_policy, signals

INVALID = ((1, 2), (3, 5))


def make(memory: str = "", **settings: Any) -> A2C:
    return A2C(A2CSettings(**settings), make_policy(CHOICES, memory), signals(gamma=0.9), Rng(0))


def returns_by_hand(reward: np.ndarray, value: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Discounted sums of rewards to the end of the rollout and the value that follows it, lane by lane."""
    steps, lanes = reward.shape
    result = np.zeros((steps, lanes))
    for lane in range(lanes):
        following = float(value[steps, lane])
        for t in range(steps - 1, -1, -1):
            if not valid[t, lane]:
                following = float(value[t, lane])
                continue
            following = float(reward[t, lane]) + 0.9 * following
            result[t, lane] = following
    return result


def test_returns_are_sampled_to_the_end_and_advantages_are_what_the_critic_missed() -> None:
    batch = estimated(make())
    rollout = batch.rollout
    value = rollout.array(f.VALUE)
    expected = returns_by_hand(rollout.array(f.REWARD)[:-1], value, np.ones((6, 4), bool))
    np.testing.assert_allclose(rollout.array(f.RETURN)[:-1], expected, atol=1e-5)
    np.testing.assert_allclose(rollout.array(f.ADVANTAGE)[:-1], expected - value[:-1], atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_one_update_is_one_step_down_an_independent_loss(normalize: bool) -> None:
    ours = make(entropy_coef=0.02, value_coef=0.7, learning_rate=1e-3, normalize_advantage=normalize)
    policy = make_policy()
    batch = estimated(ours, invalid=INVALID)
    rows = {name: batch.rollout.flat(name)[batch.valid_rows].clone() for name in A2C.minibatch_fields}
    advantage = rows[f.RETURN] - rows[f.VALUE]
    if normalize:
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    distribution = Categorical(logits=policy.actor(rows[f.OBS]))
    policy_loss = -(distribution.log_prob(rows[f.ACTION]) * advantage).mean()
    value_loss = (policy.critic(rows[f.OBS]).squeeze(-1) - rows[f.RETURN]).square().mean()
    entropy = distribution.entropy().mean()
    adam = torch.optim.Adam(policy.parameters(), lr=1e-3, eps=1e-5)
    (policy_loss + 0.7 * value_loss - 0.02 * entropy).backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    adam.step()
    metrics = ours.update(batch, Progress(1000))
    for mine, theirs in zip(ours.policy.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)
    assert metrics["train/policy_loss"] == pytest.approx(policy_loss.item(), abs=1e-5)
    assert metrics["train/value_loss"] == pytest.approx(value_loss.item(), rel=1e-4)
    assert metrics["train/entropy"] == pytest.approx(entropy.item(), rel=1e-5)
    assert metrics["train/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert metrics["train/learning_rate"] == 1e-3
    assert "train/explained_variance" in metrics


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_a_recurrent_policy_learns_from_all_lanes_in_one_step(memory: str) -> None:
    ours = make(memory)
    batch = estimated(ours, invalid=INVALID)
    before = ours.optimizer.flat.detach().clone()
    ours.update(batch, Progress(1000))
    assert float(ours.optimizer.num_steps) == 1
    assert not torch.equal(ours.optimizer.flat, before)
    assert ours.policy.trunk.memory.state_weight.grad.any()
