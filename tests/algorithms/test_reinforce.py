"""REINFORCE by hand: returns of whole episodes, with and without a baseline, and episodes that were cut."""

from __future__ import annotations

import pytest
import torch

from quintain import Trainer
from quintain.algorithms.reinforce import REINFORCE
from quintain.algorithms.settings import REINFORCESettings
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.actor_only import ActorOnly
from quintain.policies.settings import ActorCriticSettings, ActorOnlySettings
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings

SPEC = BehaviorSpec(obs=box(2), action=discrete(2))
HALF = {"extrinsic": Extrinsic(ExtrinsicSettings(gamma=0.5))}


def make(*, has_baseline: bool, **settings: object) -> REINFORCE:
    kinds = (ActorCritic, ActorCriticSettings) if has_baseline else (ActorOnly, ActorOnlySettings)
    policy = kinds[0](kinds[1](hidden_sizes=(4,)), SPEC, Rng(0))  # type: ignore[arg-type]  # they belong together
    chosen = REINFORCESettings.model_validate({"normalize_advantage": False, **settings})
    return REINFORCE(chosen, policy, HALF, Rng(1))


def played(algorithm: REINFORCE) -> Batch:
    """Three lanes of three steps: one ends truly after two, one is truncated after two, one goes on."""
    rollout = Rollout(SPEC, algorithm.policy.declare_fields(), num_lanes=3, num_steps=3)
    draw = torch.Generator().manual_seed(0)
    rollout.storage[f.OBS].copy_(torch.randn(4, 3, 2, generator=draw))
    rollout.storage[f.ACTION].copy_(torch.randint(2, (4, 3), generator=draw))
    rollout.storage[f.REWARD][:3].copy_(torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [9.0, 9.0, 4.0]]))
    rollout.storage[f.VALID].fill_(True)
    rollout.storage[f.VALID][2, :2] = False
    rollout.storage[f.DONE][1, :2] = True
    rollout.storage[f.TERMINATED][1, 0] = True
    rollout.storage[f.TRUNCATED][1, 1] = True
    if algorithm.policy.has_values:
        rollout.storage[f.VALUE].copy_(
            torch.tensor([[0.5, 0.5, 0.5], [0.25, 0.25, 0.25], [7.0, 7.0, 1.0], [0, 0, 8.0]])
        )
        rollout.storage[f.FINAL_VALUE][1, 1] = 6.0
    return Batch(rollout)


RETURNS = {
    # gamma is 1/2: the rewards until the end; the value of the last observation counts after a cut.
    True: [
        [2.0, 1.0 + 0.5 * 2.0 + 0.25 * 6.0, 1.0 + 0.5 * 2.0 + 0.25 * 4.0 + 0.125 * 8.0],
        [2.0, 5.0, 2.0 + 2.0 + 2.0],
    ],
    # Without a baseline nothing stands in for the rest.
    False: [[2.0, 2.0, 3.0], [2.0, 2.0, 4.0]],
}


@pytest.mark.parametrize("has_baseline", [True, False])
def test_returns_are_those_of_whole_episodes(has_baseline: bool) -> None:
    algorithm = make(has_baseline=has_baseline)
    batch = played(algorithm)
    algorithm.estimate(batch)
    returns = torch.tensor(RETURNS[has_baseline])
    baseline = torch.tensor([[0.5] * 3, [0.25] * 3]) if has_baseline else torch.zeros(2, 3)
    torch.testing.assert_close(batch.rollout.storage[f.RETURN][:2], returns)
    torch.testing.assert_close(batch.rollout.storage[f.ADVANTAGE][:2], returns - baseline)


@pytest.mark.parametrize("has_baseline", [True, False])
def test_the_loss_weighs_log_probabilities_by_what_followed(has_baseline: bool) -> None:
    algorithm = make(has_baseline=has_baseline, entropy_coef=0.1, value_coef=0.25)
    batch = played(algorithm)
    algorithm.estimate(batch)
    [rows] = algorithm.minibatches(batch, 100, 0)
    assert len(rows[f.ACTION]) == 7, "steps after an end do not count"
    features = torch.tanh(rows[f.OBS] @ algorithm.policy.actor[0].weight.T + algorithm.policy.actor[0].bias)  # type: ignore[index,operator,union-attr]  # the default network
    log_probs = torch.log_softmax(features @ algorithm.policy.actor[2].weight.T + algorithm.policy.actor[2].bias, dim=1)  # type: ignore[index,operator,union-attr]  # the same
    chosen = log_probs[torch.arange(7), rows[f.ACTION]]
    expected = -(chosen * rows[f.ADVANTAGE]).mean() + 0.1 * (log_probs.exp() * log_probs).sum(dim=1).mean()
    if has_baseline:
        value = algorithm.policy.value_of(rows[f.OBS])
        expected = expected + 0.25 * (value - rows[f.RETURN]).square().mean()
    found = algorithm.loss(rows, 0.0)
    torch.testing.assert_close(found.total, expected)
    assert ("train/value_loss" in found.parts) == has_baseline


def test_every_rollout_has_one_episode_of_each_lane() -> None:
    trainer = Trainer("reinforce", "CartPole-v1", num_lanes=3, num_steps=80, writers=[], events=[], seed=1)
    assert trainer.advance()
    rollout = trainer.taken.rollout
    assert (rollout.array(f.DONE)[:-1].sum(axis=0) == 1).all()
    assert trainer.progress.env_steps == int(rollout.array(f.VALID)[:-1].sum())
    assert rollout.array(f.FIRST)[0].all()
    trainer.close()
