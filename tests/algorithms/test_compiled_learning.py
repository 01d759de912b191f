"""Learning by kernels is learning: gradients, reports and steps are those of torch's autograd, to rounding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.a2c import A2C
from quintain.algorithms.grpo import GRPO
from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import A2CSettings, GRPOSettings, PPOSettings
from quintain.compiled.plug import accelerate
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.errors import NonFiniteError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.actor_only import ActorOnly
from quintain.policies.settings import ActorCriticSettings, ActorOnlySettings
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings
from tests.policies.twins import CASES, rollout_for, twins

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "entropy": {"entropy_coef": 0.05},
    "values clipped": {"clip_value": 0.2, "value_coef": 1.3},
    "tight clip": {"clip_coef": 0.02, "entropy_coef": 0.01},
    "components clipped": {"clip_per_component": True, "clip_coef": 0.1, "entropy_coef": 0.05},
}


def make(policy: ActorCritic, **settings: Any) -> PPO:
    return PPO(PPOSettings(**settings), policy, {"extrinsic": Extrinsic(ExtrinsicSettings())}, Rng(3))


def batch_for(policy: ActorCritic, *, num_lanes: int = 9, num_steps: int = 17, is_whole: bool = True) -> Batch:
    """Makes a batch of the policy's own actions, with log-probabilities and values as if it had moved since."""
    rollout = rollout_for(policy, num_lanes, num_steps)
    with torch.no_grad():
        for slot in rollout.slots:
            policy.act(slot)
    draw = np.random.default_rng(4)
    for name, spread in ((f.LOG_PROB, 0.2), (f.VALUE, 0.4), (f.COMPONENTS, 0.15)):
        if name not in rollout.arrays:
            continue
        rollout.arrays[name][...] += draw.normal(size=rollout.arrays[name].shape) * spread
    for name in (f.ADVANTAGE, f.RETURN, f.REWARD):
        rollout.arrays[name][...] = draw.normal(size=rollout.arrays[name].shape)
    if not is_whole:
        rollout.arrays[f.VALID][...] = draw.random(rollout.arrays[f.VALID].shape) < 0.8
    return Batch(rollout)


def pair(case: str, **settings: Any) -> tuple[PPO, PPO]:
    compiled, plain = (make(policy, **settings) for policy in twins(case))
    assert accelerate(compiled.policy, compiled).learning.fallback_reason == ""
    assert accelerate(plain.policy, plain).learning.fallback_reason
    return compiled, plain


def gradients(compiled: PPO, plain: PPO, batch: Batch, rows: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Returns the gradient of the same rows' loss by both, before any clipping or step."""
    for ppo in (compiled, plain):
        ppo.optimizer.apply = lambda learning_rate, weight=1.0: math.nan  # type: ignore[method-assign,misc,assignment]
    names = [*batch.rollout.storage]
    minibatch = {name: batch.rollout.flat(name)[rows] for name in names if name != f.VALID}
    plain.optimizer.clear()
    plain.optimizer.add(plain.loss(minibatch, 0.0).total)
    compiled.sampler.row_numbers = lambda *given: (rows,)  # type: ignore[method-assign,misc]
    assert compiled.accelerator is not None
    list(compiled.accelerator.prepare(batch, Progress(1000), 1e-3)(0))
    return compiled.optimizer.grad.numpy(), plain.optimizer.grad.numpy()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_autograd(case: str, options: str) -> None:
    compiled, plain = pair(case, **OPTIONS[options])
    batch = batch_for(plain.policy)  # type: ignore[arg-type]  # an actor-critic
    rows = torch.randperm(153, generator=torch.Generator().manual_seed(0))[:150]
    found, expected = gradients(compiled, plain, batch, rows)
    assert np.abs(expected).max() > 1e-3
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error < 1e-5, error


@pytest.mark.parametrize("num_rows", [1, 15, 128, 129, 300])
def test_no_number_of_rows_is_special(num_rows: int) -> None:
    compiled, plain = pair("hybrid", entropy_coef=0.01)
    batch = batch_for(plain.policy, num_lanes=20)  # type: ignore[arg-type]  # an actor-critic
    found, expected = gradients(compiled, plain, batch, torch.arange(num_rows))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_a_deviation_beyond_its_bounds_is_not_pushed_further() -> None:
    compiled, plain = pair("state std", entropy_coef=0.1)
    for ppo in (compiled, plain):
        policy: Any = ppo.policy
        with torch.no_grad():
            policy.actor[-1].bias[3:].copy_(torch.tensor([9.0, -9.0, 0.0]))
    batch = batch_for(plain.policy)  # type: ignore[arg-type]  # an actor-critic
    found, expected = gradients(compiled, plain, batch, torch.arange(100))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-5 * np.abs(expected).max())
    start = 5 * 16 + 16 + 16 * 12 + 12 + 12 * 6
    assert np.abs(expected[start : start + 6]).min() == 0.0


@pytest.mark.parametrize("case", CASES)
def test_an_update_ends_with_the_weights_and_reports_of_the_plain_path(case: str) -> None:
    settings = {"num_epochs": 3, "batch_size": 40, "entropy_coef": 0.01, "clip_value": 0.5, "learning_rate": 1e-3}
    compiled, plain = pair(case, **settings)
    batch = batch_for(plain.policy, is_whole=False)  # type: ignore[arg-type]  # an actor-critic
    reports = []
    for ppo in (compiled, plain):
        ppo.estimate(batch)
        reports.append(ppo.update(batch, Progress(1000)))
    assert [*reports[0]] == [*reports[1]]
    for name, value in reports[1].items():
        assert reports[0][name] == pytest.approx(value, rel=2e-3, abs=1e-5), name
    moved, begun = 0.0, twins(case)[1].state_dict()
    for name, parameter in plain.policy.state_dict().items():
        np.testing.assert_allclose(compiled.policy.state_dict()[name], parameter, atol=1e-4, err_msg=name)
        moved = max(moved, float((parameter - begun[name]).abs().max()))
    assert moved > 5e-3


def test_a_target_kl_ends_the_epochs_at_the_same_time() -> None:
    compiled, plain = pair("choice", num_epochs=20, batch_size=51, target_kl=0.03, learning_rate=3e-3)
    batch = batch_for(plain.policy)  # type: ignore[arg-type]  # an actor-critic
    ends = [ppo.update(batch, Progress(1000))["train/num_epochs"] for ppo in (compiled, plain)]
    assert ends[0] == ends[1]
    assert 1 <= ends[0] < 20


def test_the_learning_rate_is_adapted_alike() -> None:
    compiled, plain = pair("choice", num_epochs=4, batch_size=51, adaptive_kl=1e-4)
    batch = batch_for(plain.policy)  # type: ignore[arg-type]  # an actor-critic
    for ppo in (compiled, plain):
        ppo.update(batch, Progress(1000))
    assert compiled.adapted_learning_rate == plain.adapted_learning_rate != 1e-3


def test_a_smaller_scale_of_the_learning_rate_takes_smaller_steps() -> None:
    moves = []
    for scale in (1.0, 0.1):
        compiled, _ = pair("choice", num_epochs=1, batch_size=153)
        compiled.learning_rate_scale = scale
        before = compiled.optimizer.flat.detach().clone()
        compiled.update(batch_for(compiled.policy), Progress(1000))  # type: ignore[arg-type]  # an actor-critic
        moves.append(float((compiled.optimizer.flat.detach() - before).abs().max()))
    assert moves[1] == pytest.approx(0.1 * moves[0], rel=1e-3)


def test_numbers_that_are_not_finite_move_nothing_and_are_refused() -> None:
    compiled, _ = pair("choice", num_epochs=1, batch_size=153)
    batch = batch_for(compiled.policy)  # type: ignore[arg-type]  # an actor-critic
    batch.rollout.arrays[f.ADVANTAGE][3, 2] = np.nan
    before = compiled.optimizer.flat.detach().clone()
    with pytest.raises(NonFiniteError, match=r"became nan"):
        compiled.update(batch, Progress(1000))
    assert torch.equal(compiled.optimizer.flat.detach(), before)
    assert float(compiled.optimizer.num_steps) == 0.0


def test_steps_that_do_not_count_are_not_learned_from() -> None:
    weights = []
    for spoiled in (0.0, 1e6):
        compiled, _ = pair("choice", num_epochs=2, batch_size=30)
        batch = batch_for(compiled.policy, is_whole=False)  # type: ignore[arg-type]  # an actor-critic
        for name in (f.ADVANTAGE, f.RETURN, f.LOG_PROB):
            batch.rollout.arrays[name][~batch.rollout.arrays[f.VALID]] = spoiled
        compiled.update(batch, Progress(1000))
        weights.append(compiled.optimizer.flat.detach().clone())
    assert torch.equal(*weights)


SPEC = BehaviorSpec(box(4), discrete(2))


class Halved(PPO):
    """Changes the loss."""


@pytest.mark.parametrize(
    ("algorithm", "settings", "reason"),
    [
        (PPO, PPOSettings(use_symmetry=True), "no kernel for algorithm.use_symmetry"),
        (PPO, PPOSettings(micro_batch_size=8), "no kernel for algorithm.micro_batch_size"),
        (Halved, PPOSettings(), "kernels do not know what Halved changes"),
        (A2C, A2CSettings(), "this algorithm has no kernels"),
        (GRPO, GRPOSettings(), "this algorithm has no kernels"),
    ],
    ids=["symmetry", "micro batches", "subclass", "a2c", "grpo"],
)
def test_what_has_no_kernels_learns_plainly_and_says_why(algorithm: Any, settings: Any, reason: str) -> None:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,)), SPEC, Rng(0))
    made = algorithm(settings, policy, {"extrinsic": Extrinsic(ExtrinsicSettings())}, Rng(0))
    assert reason in accelerate(policy, made).learning.fallback_reason
    assert made.optimizer.kernel is None


def test_images_are_learned_from_plainly() -> None:
    image = BehaviorSpec(box(8, 8, 1, low=0, high=255, dtype="uint8"), discrete(2))
    policy = ActorCritic(ActorCriticSettings(), image, Rng(0))
    accelerated = accelerate(policy, make(policy))
    assert accelerated.acting.fallback_reason == ""
    assert "no kernel for convolutions" in accelerated.learning.fallback_reason


def test_a_policy_without_a_critic_learns_plainly() -> None:
    policy = ActorOnly(ActorOnlySettings(hidden_sizes=(8,)), SPEC, Rng(0))
    assert "without a critic" in accelerate(policy, make(policy)).learning.fallback_reason


def test_a_policy_that_acts_plainly_learns_plainly() -> None:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,), compiled=False), SPEC, Rng(0))
    assert accelerate(policy, make(policy)).learning.fallback_reason == "policy.compiled is off"


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("has_state_std", [True, False])
def test_a_bonus_for_entropy_alone_raises_the_entropy_of_squashed_actions(
    is_compiled: bool, has_state_std: bool
) -> None:
    spec = BehaviorSpec(box(3), box(2, low=-1.0, high=1.0))
    settings = {"squash_actions": True, "state_dependent_std": has_state_std, "compiled": is_compiled}
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(16,), **settings), spec, Rng(5))
    ppo = make(policy, entropy_coef=0.1, value_coef=0.0, num_epochs=20, batch_size=256, learning_rate=1e-2)
    assert bool(accelerate(policy, ppo).learning.fallback_reason) is not is_compiled

    def sampled_entropy() -> float:
        """Returns the mean of -log p of what the policy does, which needs no formula of an entropy."""
        rollout = rollout_for(policy, 512, 8)
        with torch.no_grad():
            for slot in rollout.slots:
                policy.act(slot)
        return -float(rollout.arrays[f.LOG_PROB].mean())

    before = sampled_entropy()
    for _ in range(3):
        batch = batch_for(policy, num_lanes=64, num_steps=4)
        batch.rollout.arrays[f.ADVANTAGE][...] = 0.0
        reported = ppo.update(batch, Progress(1000))["train/entropy"]
    after = sampled_entropy()
    # Two numbers with mean 0 and log std 0 have 2 x 0.67; the most that tanh of a Gaussian has is 2 x 0.684 at a
    # deviation of 0.87, near the log 2 of uniform numbers.
    assert before == pytest.approx(1.34, abs=0.04)
    assert after > before + 0.015
    assert reported == pytest.approx(1.367, abs=0.004)
