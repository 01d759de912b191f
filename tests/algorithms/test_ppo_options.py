"""PPO's options: gradient accumulation, symmetry, the adaptive learning rate, the entropy schedule, memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import PPOSettings
from quintain.algorithms.symmetry import with_mirrors
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec
from quintain.settings.base import Schedule
from tests.algorithms.samples import CHOICES, HYBRID, disturb, estimated, gradients, make_policy, signals


def make(spec: BehaviorSpec = CHOICES, memory: str = "", **settings: Any) -> PPO:
    return PPO(PPOSettings(**settings), make_policy(spec, memory), signals(), Rng(0))


CASES = {"rows": (CHOICES, ""), "hybrid rows": (HYBRID, ""), "lstm": (HYBRID, "lstm"), "gru": (CHOICES, "gru")}
EVERY = pytest.mark.parametrize(("spec", "memory"), CASES.values(), ids=CASES)
INVALID = ((1, 2), (1, 3), (3, 0))


@EVERY
@pytest.mark.parametrize("micro_batch_size", [6, 12, 18])
def test_accumulated_gradients_are_those_of_the_whole_minibatch(
    spec: BehaviorSpec, memory: str, micro_batch_size: int
) -> None:
    results = []
    for size in (None, micro_batch_size):
        ppo = make(spec, memory, entropy_coef=0.01, max_grad_norm=None)
        batch = estimated(ppo, invalid=INVALID, first=((0, 0), (2, 3)))
        disturb(ppo.policy)
        (minibatch,) = ppo.minibatches(batch, 24, 0, 0)
        parts = ppo.gradient_step(minibatch, 0.0, 0.0, size)
        results.append((gradients(ppo), parts))
    (whole, parts), (summed, part_sums) = results
    assert whole.abs().max() > 0.01
    torch.testing.assert_close(summed, whole, atol=1e-6, rtol=1e-5)
    for name, value in parts.items():
        torch.testing.assert_close(part_sums[name], value, atol=1e-5, rtol=1e-4, msg=name)


@EVERY
def test_an_update_in_parts_is_the_update(spec: BehaviorSpec, memory: str) -> None:
    whole, parts = (make(spec, memory, batch_size=12, num_epochs=2, micro_batch_size=size) for size in (None, 6))
    for ppo in (whole, parts):
        ppo.update(estimated(ppo, invalid=INVALID), Progress(1000))
    torch.testing.assert_close(parts.optimizer.flat, whole.optimizer.flat, atol=1e-5, rtol=0)


def mirror(obs: Any, action: Any) -> list[tuple[Any, Any]]:
    """Two symmetries of a hybrid task: left and right, and upside down."""
    x, go = obs["x"], action["go"]
    left = ({"x": x * torch.tensor([-1.0, 1.0, 1.0]), "c": obs["c"]}, {"go": 2 - go, "push": -action["push"]})
    down = ({"x": x.flip(1), "c": 1 - obs["c"]}, {"go": go, "push": action["push"].flip(1)})
    return [left, down]


def test_mirrored_steps_stand_behind_the_minibatch_and_share_its_other_fields() -> None:
    ppo = make(HYBRID)
    (minibatch,) = ppo.minibatches(estimated(ppo), 24, 0, 0)
    minibatch = {name: field.clone() for name, field in minibatch.items()}
    more = with_mirrors(minibatch, ppo.policy.spec, mirror)
    assert {len(field) for field in more.values()} == {72}
    assert torch.equal(more["obs.x"][24:48, 0], -minibatch["obs.x"][:, 0])
    assert torch.equal(more["action.go"][24:48], 2 - minibatch["action.go"])
    assert torch.equal(more["obs.c"][48:], 1 - minibatch["obs.c"])
    for name in (f.LOG_PROB, f.ADVANTAGE, f.RETURN, f.VALUE):
        assert torch.equal(more[name], minibatch[name].repeat(3))
    assert {name: field.dtype for name, field in more.items()} == {n: x.dtype for n, x in minibatch.items()}


@pytest.mark.parametrize("micro_batch_size", [None, 30])
def test_the_augmented_gradient_is_that_of_the_concatenated_batch(micro_batch_size: int | None) -> None:
    settings = {"batch_size": 24, "num_epochs": 1, "max_grad_norm": None, "entropy_coef": 0.01}
    plain = make(HYBRID, **settings)
    augmented = make(HYBRID, **settings, use_symmetry=True, micro_batch_size=micro_batch_size)
    augmented.mirror = mirror
    batch = estimated(plain)
    for ppo in (plain, augmented):
        disturb(ppo.policy)
    (minibatch,) = plain.minibatches(batch, 24, 0, 0)
    obs = {"x": minibatch["obs.x"], "c": minibatch["obs.c"]}
    action = {"go": minibatch["action.go"], "push": minibatch["action.push"]}
    total = 0.0
    # By hand: the mean over all copies is the mean of the copies' means, because they have the same size.
    for seen, done in [(obs, action), *mirror(obs, action)]:
        copy = {**minibatch, "obs.x": seen["x"], "obs.c": seen["c"]}
        copy |= {"action.go": done["go"], "action.push": done["push"]}
        total = total + plain.loss(copy, 0.0).total / 3
    expected = torch.autograd.grad(total, list(plain.policy.parameters()))
    augmented.update(batch, Progress(1000))
    torch.testing.assert_close(gradients(augmented), torch.cat([g.flatten() for g in expected]), atol=1e-6, rtol=1e-4)


def test_without_a_mirror_nothing_is_added() -> None:
    ppo = make(HYBRID)
    (minibatch,) = ppo.minibatches(estimated(ppo), 24, 0, 0)
    assert ppo.mirrored(minibatch) is minibatch


@pytest.mark.parametrize(
    ("kl", "before", "after"),
    [
        # Wanted 0.01: above 0.02 the rate falls by 1.5, below 0.005 it rises by 1.5, between it stays.
        (0.021, 3e-4, 2e-4),
        (0.019, 3e-4, 3e-4),
        (0.01, 3e-4, 3e-4),
        (0.0051, 3e-4, 3e-4),
        (0.0049, 3e-4, 4.5e-4),
        # Nothing moved: that is no reason to go faster.
        (0.0, 3e-4, 3e-4),
        # Within 1e-5 and 1e-2.
        (1.0, 1.2e-5, 1e-5),
        (1e-5, 9e-3, 1e-2),
    ],
)
def test_the_learning_rate_follows_the_policys_movement(kl: float, before: float, after: float) -> None:
    ppo = make(adaptive_kl=0.01, learning_rate=before)
    assert ppo.adapted_learning_rate == before
    ppo._adapt_learning_rate(kl)
    assert ppo.adapted_learning_rate == pytest.approx(after, rel=1e-9)


def test_the_adapted_rate_is_used_reported_and_remembered() -> None:
    ppo, restored = (make(adaptive_kl=1e-9, learning_rate=3e-3, batch_size=12, num_epochs=2) for _ in range(2))
    rates = [ppo.update(estimated(ppo), Progress(1000))["train/learning_rate"] for _ in range(3)]
    # It moves more than 2e-9 in each update, so each one is slower than the one before.
    assert rates == pytest.approx([3e-3, 2e-3, 2e-3 / 1.5])
    restored.load_state_dict(ppo.state_dict())
    assert restored.adapted_learning_rate == ppo.adapted_learning_rate == pytest.approx(2e-3 / 2.25)


def test_without_adaption_the_rate_is_the_schedules() -> None:
    ppo = make(learning_rate=Schedule(start=1e-3, end=0.0, shape="linear"), num_epochs=1)
    progress = Progress(1000)
    progress.close_cycle(env_steps=500, episodes=0)
    assert ppo.update(estimated(ppo), progress)["train/learning_rate"] == pytest.approx(5e-4)


@pytest.mark.parametrize(("env_steps", "expected"), [(0, 0.5), (500, 0.3), (1000, 0.1), (2000, 0.1)])
def test_the_entropy_bonus_follows_its_schedule(env_steps: int, expected: float) -> None:
    ppo = make(entropy_coef=Schedule(start=0.5, end=0.1, shape="linear"), max_grad_norm=None)
    plain = make(entropy_coef=0.0, max_grad_norm=None)
    (minibatch,) = ppo.minibatches(estimated(ppo), 24, 0, 0)
    progress = Progress(1000)
    progress.close_cycle(env_steps=env_steps, episodes=0)
    with_bonus, without = (one.loss(minibatch, progress.fraction) for one in (ppo, plain))
    entropy = without.parts["train/entropy"]
    torch.testing.assert_close(with_bonus.total, without.total - expected * entropy)


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_ratios_of_a_recurrent_policy_are_one_before_it_moves(memory: str) -> None:
    ppo = make(HYBRID, memory, batch_size=12, num_epochs=1)
    batch = estimated(ppo, invalid=INVALID, first=((0, 0), (2, 3), (1, 4)))
    for minibatch in ppo.minibatches(batch, 12, 0, 0):
        then, now = ppo.evaluate_minibatch(minibatch)
        torch.testing.assert_close(now[f.LOG_PROB], then[f.LOG_PROB], atol=1e-5, rtol=0)
    # The KL of a minibatch is measured before its own step: the first one's is zero.
    metrics = ppo.update(batch, Progress(1000))
    assert 0 < metrics["train/approx_kl"] < 0.1
