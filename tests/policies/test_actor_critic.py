"""A policy's acting, judging and predicting agree with each other and depend on nothing but their inputs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.distributions import Categorical, Independent, Normal

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.errors import SpecMismatch
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.base import draw_noise
from quintain.policies.settings import ActorCriticSettings
from tests.declared import declared

CHOICES = BehaviorSpec(obs=box(4), action=discrete(3))
NUMBERS = BehaviorSpec(obs=box(2, 2), action=box(2, low=-0.5, high=0.25))
BOTH = pytest.mark.parametrize("spec", [CHOICES, NUMBERS], ids=["choices", "numbers"])


def make(spec: BehaviorSpec, seed: int = 0, **settings: Any) -> ActorCritic:
    policy = ActorCritic(ActorCriticSettings(**settings), spec, Rng(seed))
    with torch.no_grad():
        # A fresh actor is nearly uniform; larger weights make mistakes visible.
        policy.actor[-1].weight.mul_(100)
    return policy


def acted(policy: ActorCritic, num_lanes: int = 6, seed: int = 0) -> Rollout:
    rollout = Rollout(policy.spec, num_lanes=num_lanes, num_steps=1, fields=policy.declare_fields())
    obs = np.random.default_rng(seed).standard_normal((num_lanes, *policy.spec.obs.shape))
    rollout.write(f.OBS, 0, obs)
    draw_noise(rollout, policy.noise, Rng(seed), first_step=0)
    with torch.inference_mode():
        policy.act(rollout.slots[0])
    return rollout


@BOTH
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_judging_an_action_again_gives_the_log_probability_it_was_sampled_with(
    spec: BehaviorSpec, normalize_obs: bool
) -> None:
    policy = make(spec, normalize_obs=normalize_obs)
    policy.observe({f.OBS: 3 + 5 * np.random.default_rng(5).standard_normal((50, *spec.obs.shape))})
    rollout = acted(policy)
    now = policy.evaluate_actions({name: rollout.flat(name) for name in (f.OBS, f.ACTION)})
    torch.testing.assert_close(now[f.LOG_PROB], rollout.flat(f.LOG_PROB), atol=1e-5, rtol=0)
    torch.testing.assert_close(now[f.VALUE], rollout.flat(f.VALUE), atol=1e-6, rtol=0)
    assert now[f.LOG_PROB].requires_grad
    assert now[f.VALUE].requires_grad


@BOTH
def test_acting_is_what_the_two_networks_say(spec: BehaviorSpec) -> None:
    policy, rollout = make(spec), acted(make(spec))
    features = rollout.flat(f.OBS).reshape(6, -1)
    output, action = policy.actor(features), rollout.flat(f.ACTION)
    oracle = Categorical(logits=output) if spec is CHOICES else Independent(Normal(output, 1.0), 1)
    torch.testing.assert_close(rollout.flat(f.LOG_PROB), oracle.log_prob(action), atol=1e-5, rtol=0)
    torch.testing.assert_close(rollout.flat(f.VALUE), policy.critic(features).squeeze(-1), atol=1e-6, rtol=0)
    torch.testing.assert_close(policy.value_of(rollout.flat(f.OBS)), rollout.flat(f.VALUE), atol=1e-6, rtol=0)


@BOTH
def test_acting_touches_only_its_own_slot(spec: BehaviorSpec) -> None:
    rollout = acted(make(spec))
    for name in (f.ACTION, f.LOG_PROB, f.VALUE):
        assert not rollout.storage[name][1].any()
        assert rollout.storage[name][0].any()


@BOTH
def test_weights_are_a_function_of_the_seed_and_of_no_global_generator(spec: BehaviorSpec) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = make(spec, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = make(spec, seed=3), make(spec, seed=4)
    for name, value in one.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    assert not torch.equal(one.actor[0].weight, other.actor[0].weight)


def test_networks_start_orthogonal_with_zero_biases() -> None:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,)), CHOICES, Rng(0))
    # Hidden layers have gain sqrt(2): W^T W = 2 I. The actor's last layer has gain 0.01, the critic's 1.
    hidden, actor, critic = policy.actor[0].weight, policy.actor[-1].weight, policy.critic[-1].weight
    torch.testing.assert_close(hidden.T @ hidden, 2 * torch.eye(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(actor @ actor.T, 1e-4 * torch.eye(3), atol=1e-7, rtol=0)
    torch.testing.assert_close(critic @ critic.T, torch.eye(1), atol=1e-5, rtol=0)
    assert all(not module.bias.any() for module in (policy.actor[0], policy.actor[-1], policy.critic[-1]))


def test_continuous_actions_are_clipped_for_the_environment_only() -> None:
    policy = make(NUMBERS)
    rollout = acted(policy, num_lanes=50)
    action, slot = rollout.flat(f.ACTION), rollout.slots[0]
    clipped = policy.env_action(slot)
    assert action.min() < -0.5
    assert action.max() > 0.25
    assert torch.equal(clipped, action.clamp(-0.5, 0.25))
    assert policy.predict(rollout.flat(f.OBS).numpy(), deterministic=False)[0].max() <= 0.25
    unclipped = make(NUMBERS, clip_actions=False)
    assert torch.equal(unclipped.env_action(slot), action)
    unbounded = make(BehaviorSpec(obs=box(2), action=box(2)))
    assert torch.equal(unbounded.env_action(slot), action)


def test_bounds_may_differ_by_number_and_have_one_side() -> None:
    low, high = (-1.0, -math.inf), (math.inf, 2.0)
    bounded = box(2)
    spec = BehaviorSpec(obs=box(2), action=type(bounded)(shape=(2,), dtype="float32", low=low, high=high))
    slot = Rollout(spec, num_lanes=2, num_steps=1, fields=declared(2)).slots[0]
    slot.action.copy_(torch.tensor([[-5.0, -5.0], [5.0, 5.0]]))
    assert make(spec).env_action(slot).tolist() == [[-1.0, -5.0], [5.0, 2.0]]


@BOTH
def test_predicting_one_observation_and_a_batch_agree(spec: BehaviorSpec) -> None:
    policy = make(spec)
    batch = np.random.default_rng(3).standard_normal((5, *spec.obs.shape))
    actions, state = policy.predict(batch)
    assert state is None
    assert actions.shape == (5, *(() if spec is CHOICES else (2,)))
    for obs, action in zip(batch, actions, strict=True):
        single, _ = policy.predict(obs)
        np.testing.assert_allclose(single, action, atol=1e-6)
    output = policy.actor(torch.from_numpy(batch).float().reshape(5, -1)).detach()
    expected = output.argmax(-1) if spec is CHOICES else output.clamp(-0.5, 0.25)
    np.testing.assert_allclose(actions, expected, atol=1e-6)


def test_predicted_choices_are_those_of_the_environment() -> None:
    spec = BehaviorSpec(obs=box(4), action=discrete(3, start=10))
    actions, _ = make(spec).predict(np.random.default_rng(0).standard_normal((40, 4)))
    assert set(actions) <= {10, 11, 12}


@BOTH
def test_a_random_prediction_is_that_of_its_stream(spec: BehaviorSpec) -> None:
    policy, batch = make(spec), np.zeros((64, *spec.obs.shape))
    one, again, other = (policy.predict(batch, deterministic=False, rng=Rng(seed))[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_an_observation_of_another_shape_is_refused() -> None:
    with pytest.raises(SpecMismatch, match=r"shape \(3,\); the policy takes Box\(4\)"):
        make(CHOICES).predict(np.zeros(3))
    with pytest.raises(SpecMismatch):
        make(CHOICES).predict(np.zeros((2, 2, 4)))


@BOTH
def test_tensordicts_get_the_same_answers(spec: BehaviorSpec) -> None:
    policy = make(spec)
    obs = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, *spec.obs.shape)).astype(np.float32))
    step = policy.get_action(TensorDict({f.OBS: obs}, batch_size=[2, 3]), deterministic=True)
    flat = obs.reshape(6, *spec.obs.shape)
    torch.testing.assert_close(step[f.VALUE], policy.value_of(flat).detach().reshape(2, 3))
    expected = policy.actor(flat.reshape(6, -1)).detach()
    expected = expected.argmax(-1).reshape(2, 3) if spec is CHOICES else expected.reshape(2, 3, 2)
    torch.testing.assert_close(step[f.ACTION], expected)
    valued = policy.get_value(TensorDict({f.OBS: obs}, batch_size=[2, 3]))
    torch.testing.assert_close(valued[f.VALUE], step[f.VALUE])


def test_images_are_taken_as_they_are() -> None:
    policy = make(BehaviorSpec(obs=box(3, 3, low=0, high=255, dtype="uint8"), action=discrete(2)))
    image = np.arange(9, dtype=np.uint8).reshape(3, 3)
    action, _ = policy.predict(image)
    assert action == policy.actor(torch.arange(9.0).unsqueeze(0)).argmax()
