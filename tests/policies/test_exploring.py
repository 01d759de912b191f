"""Exploration: epsilon-greedy and Gaussian noise by hand, random warm-up, schedules, and kernels that act alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, TupleSpec, box, discrete, multi_discrete
from quintain.errors import SpecMismatch
from quintain.policies.base import draw_noise
from quintain.policies.deterministic_actor import DeterministicActor
from quintain.policies.exploring import ExploringPolicy
from quintain.policies.q_network import QNetwork
from quintain.policies.settings import DeterministicActorSettings, QNetworkSettings

LANES = 500
MASKED = BehaviorSpec(obs=box(3), action=discrete(4), mask_size=4)
BOUNDED = BehaviorSpec(
    obs=box(3), action=DictSpec((("push", box(2, low=-0.1, high=0.3)), ("turn", box(1, low=2.0, high=5.0))))
)


def q_network(**settings: Any) -> QNetwork:
    return QNetwork(QNetworkSettings(hidden_sizes=(8,), **settings), MASKED, Rng(0))


def actor(**settings: Any) -> DeterministicActor:
    policy = DeterministicActor(DeterministicActorSettings(hidden_sizes=(8,), **settings), BOUNDED, Rng(0))
    with torch.no_grad():
        policy.network.layers[-1].weight.mul_(4.0)  # type: ignore[operator,union-attr]  # a linear layer
    return policy


def acted(policy: ExploringPolicy, *, deterministic: bool = False, lanes: int = LANES) -> Rollout:
    rollout = Rollout(policy.spec, policy.declare_fields(), num_lanes=lanes, num_steps=1)
    draw_noise(rollout, policy.noise, Rng(1), first_step=0)
    draw = np.random.default_rng(0)
    rollout.write(f.OBS, 0, draw.standard_normal((lanes, 3)).astype(np.float32))
    if policy.spec.mask_size:
        allowed = draw.random((lanes, 4)) < 0.5
        allowed[:, 1] = True
        rollout.write(f.ACTION_MASK, 0, allowed)
    rollout.storage[f.VALUE].fill_(torch.nan)
    with torch.inference_mode():
        policy.act(rollout.slots[0], deterministic=deterministic)
    assert not rollout.storage[f.VALUE][0].any()
    assert not rollout.storage[f.LOG_PROB][0].any()
    return rollout


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_greedy_is_a_function_of_two_uniform_numbers(epsilon: float, compiled: bool) -> None:
    policy = q_network(epsilon=epsilon, compiled=compiled)
    assert (accelerate(policy).acting.path == "compiled") == compiled
    rollout = acted(policy)
    values = policy.network({f.OBS: rollout.storage[f.OBS][0]}).detach().numpy()
    chosen, masks, noise = (rollout.array(name)[0] for name in (f.ACTION, f.ACTION_MASK, f.NOISE))
    num_random = 0
    for lane in range(LANES):
        allowed = [a for a in range(4) if masks[lane, a]]
        best = max(allowed, key=lambda a: values[lane, a])
        if noise[lane, 0] < np.float32(epsilon):
            num_random += 1
            best = allowed[int(noise[lane, 1] * len(allowed))]
        assert chosen[lane] == best
    # Within five deviations of its mean.
    assert abs(num_random - epsilon * LANES) <= 5.0 * np.sqrt(epsilon * (1.0 - epsilon) * LANES)
    greedy = acted(policy, deterministic=True).array(f.ACTION)[0]
    assert all(values[i, greedy[i]] == max(values[i][masks[i]]) for i in range(LANES))


@pytest.mark.parametrize("compiled", [False, True])
def test_gaussian_noise_stays_within_the_bounds(compiled: bool) -> None:
    policy = actor(action_noise=0.4, compiled=compiled)
    assert (accelerate(policy).acting.path == "compiled") == compiled
    rollout = acted(policy)
    hidden = torch.relu(
        rollout.storage[f.OBS][0] @ policy.network.layers[0].weight.T + policy.network.layers[0].bias  # type: ignore[operator,union-attr]  # linear
    )
    mean = torch.tanh(hidden @ policy.network.layers[2].weight.T + policy.network.layers[2].bias).detach()  # type: ignore[operator,union-attr]  # linear
    expected = torch.clamp(mean + 0.4 * rollout.storage[f.NOISE][0], -1.0, 1.0)
    found = policy.continuous_of({name: rollout.storage[name][0] for name in ("action.push", "action.turn")})
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert (expected.abs() == 1.0).any()
    done = policy.env_action(rollout.slots[0])
    assert float(done["push"].min()) == np.float32(-0.1)
    assert float(done["push"].max()) == np.float32(0.3)
    assert 2.0 <= float(done["turn"].min()) < float(done["turn"].max()) <= 5.0
    torch.testing.assert_close(done["turn"], 3.5 + 1.5 * expected[:, 2:], atol=1e-5, rtol=0)
    still = acted(policy, deterministic=True).slots[0]
    torch.testing.assert_close(still.leaves["action.turn"], mean[:, 2:], atol=1e-6, rtol=0)


def test_actions_are_uniform_until_learning_starts_unless_they_are_to_be_deterministic() -> None:
    choosing, pushing = q_network(epsilon=0.0), actor(action_noise=0.0)
    likeliest = acted(choosing, deterministic=True).array(f.ACTION)[0].copy()
    for policy in (choosing, pushing):
        policy.acts_at_random.fill_(True)
    np.testing.assert_array_equal(acted(choosing, deterministic=True).array(f.ACTION)[0], likeliest)
    chosen, masks = (acted(choosing).array(name)[0] for name in (f.ACTION, f.ACTION_MASK))
    assert masks[np.arange(LANES), chosen].all()
    # Among those with all four allowed each is as frequent.
    counts = np.bincount(chosen[masks.all(axis=1)], minlength=4)
    assert counts.min() > 5
    drawn = acted(pushing, lanes=4000).array("action.push")[0].ravel()
    counts, _ = np.histogram(drawn, bins=10, range=(-1.0, 1.0))
    assert np.abs(counts - 800).max() < 5 * np.sqrt(800)


@pytest.mark.parametrize("name", ["dqn", "td3"])
def test_exploration_follows_its_schedule_with_every_version(name: str) -> None:
    """Four lanes take 100 steps in all: the schedule ends after half of them."""
    schedule = {"start": 1.0, "end": 0.5, "until": 0.5}
    chosen = {"epsilon": schedule} if name == "dqn" else {"action_noise": schedule}
    trainer = Trainer(
        name, "CartPole-v1" if name == "dqn" else "Pendulum-v1", num_lanes=4, num_steps=5, total_timesteps=100,
        hidden_sizes=[4], batch_size=4, learning_starts=1000, writers=[], events=[], **chosen,
    )  # fmt: skip
    found = []
    for _ in range(5):
        found.append(float(trainer.policy.exploration))
        trainer.advance()
    np.testing.assert_array_equal(np.array(found, np.float32), np.array([1.0, 0.8, 0.6, 0.5, 0.5], np.float32))
    assert bool(trainer.policy.acts_at_random)
    trainer.close()


def test_random_actions_end_when_learning_starts() -> None:
    trainer = Trainer("td3", "Pendulum-v1", num_lanes=2, learning_starts=6, hidden_sizes=[4], batch_size=4, writers=[])
    flags = []
    for _ in range(4):
        trainer.advance()
        flags.append(bool(trainer.policy.acts_at_random))
    # Two steps a cycle: the sixth is in the third.
    assert flags == [True, True, False, False]
    trainer.close()


@pytest.mark.parametrize(
    ("action", "policy", "sentence"),
    [
        (box(2, low=-1.0, high=1.0), QNetwork, "a q_network values each action of one Discrete space"),
        (multi_discrete(2, 3), QNetwork, "a q_network values each action of one Discrete space"),
        (TupleSpec((discrete(2), discrete(2))), QNetwork, "a q_network values each action of one Discrete space"),
        (discrete(2), DeterministicActor, "a deterministic_actor has continuous actions only"),
        (box(2), DeterministicActor, "needs a lower and an upper bound"),
    ],
)
def test_other_actions_are_refused_in_one_sentence(action: Any, policy: Any, sentence: str) -> None:
    settings = QNetworkSettings() if policy is QNetwork else DeterministicActorSettings()
    with pytest.raises(SpecMismatch, match=sentence) as refused:
        policy(settings, BehaviorSpec(obs=box(3), action=action), Rng(0))
    assert "\n" not in refused.value.message
