"""PPO against an independent implementation with torch.distributions and autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import PPOSettings
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.envs.gym.vector import VectorEnv
from quintain.errors import NonFiniteError, SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.base import draw_noise
from quintain.policies.settings import ActorCriticSettings
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings
from quintain.rollouts.sync_collector import SyncCollector
from quintain.settings.base import Schedule
from tests.declared import declared
from tests.scripted import Episode, ScriptedVectorEnv, ignore_episodes, never

CHOICES = BehaviorSpec(obs=box(3), action=discrete(4))
NUMBERS = BehaviorSpec(obs=box(3), action=box(2))
BOTH = pytest.mark.parametrize("spec", [CHOICES, NUMBERS], ids=["choices", "numbers"])


def make(spec: BehaviorSpec = CHOICES, *, seed: int = 0, **settings: Any) -> PPO:
    # The plain path is the reference; kernels are held to it elsewhere.
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,), compiled=False), spec, Rng(seed))
    with torch.no_grad():
        policy.actor[-1].weight.mul_(100)
    return PPO(PPOSettings(**settings), policy, {"extrinsic": Extrinsic(ExtrinsicSettings())}, Rng(seed))


def batch_for(ppo: PPO, *, num_lanes: int = 4, num_steps: int = 6, invalid: tuple[tuple[int, int], ...] = ()) -> Batch:
    """Makes a batch of random observations with the policy's own actions and random rewards, already estimated."""
    policy, generator = ppo.policy, np.random.default_rng(1)
    rollout = Rollout(policy.spec, num_lanes=num_lanes, num_steps=num_steps, fields=policy.declare_fields())
    rollout.begin(1, version=0)
    draw_noise(rollout, policy.noise, Rng(2), first_step=0)
    rollout.storage[f.OBS].copy_(torch.from_numpy(generator.standard_normal(rollout.storage[f.OBS].shape)))
    rollout.storage[f.REWARD].copy_(torch.from_numpy(generator.standard_normal((num_steps + 1, num_lanes))))
    with torch.no_grad():
        for slot in rollout.slots:
            policy.act(slot)
    for lane, t in invalid:
        rollout[f.VALID][lane, t] = False
    batch = Batch(rollout)
    ppo.estimate(batch)
    return batch


def minibatch_of(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: batch.rollout.flat(name)[batch.valid_rows].clone() for name in PPO.minibatch_fields}


def disturb(ppo: PPO) -> None:
    """Moves the weights, so that ratios leave 1 and some of them the clipping range."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in ppo.policy.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))


def independent_loss(
    ppo: PPO,
    batch: dict[str, torch.Tensor],
    *,
    clip: float,
    clip_value: float | None,
    value_coef: float,
    entropy_coef: float,
) -> dict[str, torch.Tensor]:
    """PPO's objective again, one sample at a time, from the paper's formulas."""
    policy = ppo.policy
    output = policy.actor(batch[f.OBS])
    if isinstance(policy.spec.action, type(CHOICES.action)):
        distribution: Any = Categorical(logits=output)
    else:
        distribution = Independent(Normal(output, policy.head.parts[0].log_std.exp()), 1)
    log_probs, values = distribution.log_prob(batch[f.ACTION]), policy.critic(batch[f.OBS]).squeeze(-1)
    surrogate, errors = [], []
    for i in range(len(log_probs)):
        ratio, advantage = (log_probs[i] - batch[f.LOG_PROB][i]).exp(), batch[f.ADVANTAGE][i]
        # Equation 7, case by case: the bound holds only where it makes the objective smaller, and has no gradient.
        if advantage > 0 and ratio > 1 + clip:
            surrogate.append((1 + clip) * advantage)
        elif advantage < 0 and ratio < 1 - clip:
            surrogate.append((1 - clip) * advantage)
        else:
            surrogate.append(ratio * advantage)
        error = (values[i] - batch[f.RETURN][i]) ** 2
        if clip_value is not None:
            old = batch[f.VALUE][i]
            near = old + torch.clamp(values[i] - old, -clip_value, clip_value)
            error = torch.maximum(error, (near - batch[f.RETURN][i]) ** 2)
        errors.append(error)
    parts = {
        "policy_loss": -torch.stack(surrogate).mean(),
        "value_loss": torch.stack(errors).mean(),
        "entropy": distribution.entropy().mean(),
    }
    total = parts["policy_loss"] + value_coef * parts["value_loss"] - entropy_coef * parts["entropy"]
    return {**parts, "total": total}


@BOTH
@pytest.mark.parametrize("clip_value", [None, 0.1])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.05])
def test_loss_and_gradients_are_those_of_an_independent_implementation(
    spec: BehaviorSpec, clip_value: float | None, entropy_coef: float
) -> None:
    ppo = make(spec, clip_value=clip_value, entropy_coef=entropy_coef, value_coef=0.7)
    minibatch = minibatch_of(batch_for(ppo, num_lanes=8, num_steps=8))
    disturb(ppo)
    loss = ppo.loss(minibatch, fraction=0.0)
    expected = independent_loss(
        ppo, minibatch, clip=0.2, clip_value=clip_value, value_coef=0.7, entropy_coef=entropy_coef
    )
    for name in ("policy_loss", "value_loss", "entropy"):
        torch.testing.assert_close(loss.parts[f"train/{name}"], expected[name].detach(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(loss.total, expected["total"], atol=1e-6, rtol=1e-5)
    assert 0.05 < loss.parts["train/clip_fraction"] < 0.95  # both sides of the bound were tested
    parameters = dict(ppo.policy.named_parameters())
    ours = torch.autograd.grad(loss.total, list(parameters.values()), retain_graph=True)
    theirs = torch.autograd.grad(expected["total"], list(parameters.values()), retain_graph=True)
    for name, mine, other in zip(parameters, ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-6, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_kl_and_clip_fraction_by_hand() -> None:
    ppo = make()
    minibatch = minibatch_of(batch_for(ppo, num_lanes=1, num_steps=3))
    with torch.no_grad():
        now = ppo.policy.evaluate_actions(minibatch)[f.LOG_PROB]
    ratios = np.array([1.0, 1.5, 0.9])
    minibatch[f.LOG_PROB] = now - torch.from_numpy(np.log(ratios)).float()
    parts = ppo.loss(minibatch, 0.0).parts
    # mean of r - 1 - ln r: (0 + 0.5 - 0.405465 + -0.1 + 0.105361) / 3 = 0.099896 / 3
    assert parts["train/approx_kl"] == pytest.approx(0.0332985, abs=1e-5)
    assert parts["train/clip_fraction"] == pytest.approx(1 / 3)


def test_coefficients_follow_their_schedules() -> None:
    halving = Schedule(start=0.4, end=0.0, shape="linear")
    scheduled = make(entropy_coef=halving, clip_coef=Schedule(start=0.2, end=0.1, shape="linear"))
    fixed = make(entropy_coef=Schedule(start=0.2), clip_coef=Schedule(start=0.15))
    minibatch = minibatch_of(batch_for(scheduled))
    disturb(scheduled)
    disturb(fixed)
    torch.testing.assert_close(scheduled.loss(minibatch, 0.5).total, fixed.loss(minibatch, 0.5).total)


@pytest.mark.parametrize("mode", ["lanes", "NextStep"])
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_ratios_are_one_at_the_first_minibatch_of_every_cycle(mode: str, normalize_obs: bool) -> None:
    script = [[Episode(3, "truncated"), Episode(5, "terminated")], [Episode(4, "terminated")]]
    env = VectorEnv("script", ScriptedVectorEnv(script, "NextStep" if mode == "NextStep" else "SameStep"), Rng(0))
    policy = ActorCritic(ActorCriticSettings(normalize_obs=normalize_obs), env.spec, Rng(0))
    ppo = PPO(PPOSettings(batch_size=8, num_epochs=2), policy, {"e": Extrinsic(ExtrinsicSettings())}, Rng(0))
    collector = SyncCollector(env, policy, Rng(0), ignore_episodes)
    rollout = Rollout(env.spec, num_lanes=2, num_steps=16, fields=declared())
    progress = Progress(1000)
    for _ in range(4):
        collector.collect(rollout, 0, never)
        batch = Batch(rollout)
        ppo.estimate(batch)
        first = next(ppo.minibatches(batch, 8, progress.updates, 0))
        ratio = (policy.evaluate_actions(first)[f.LOG_PROB] - first[f.LOG_PROB]).exp()
        torch.testing.assert_close(ratio, torch.ones(8), atol=1e-5, rtol=0)
        ppo.update(batch, progress)
        policy.observe(batch.valid_obs())
        progress.close_cycle(env_steps=batch.num_valid, episodes=0)


@pytest.mark.parametrize("batch_size", [1, 5, 7, 22, 100])
def test_minibatches_hold_every_valid_step_exactly_once(batch_size: int) -> None:
    ppo = make()
    batch = batch_for(ppo, invalid=((1, 2), (3, 5)))  # 4 * 6 - 2 = 22 steps
    for row, advantage in enumerate(batch.rollout.flat(f.ADVANTAGE)):
        advantage.fill_(row)
    sizes, rows = [], []
    for minibatch in ppo.minibatches(batch, batch_size, 0, 0):
        sizes.append(len(minibatch[f.ADVANTAGE]))
        rows += minibatch[f.ADVANTAGE].tolist()
    full, rest = divmod(22, batch_size)
    assert sizes == [batch_size] * full + [rest] * (rest > 0)
    # Row t * 4 + lane: 2 * 4 + 1 = 9 and 5 * 4 + 3 = 23 only reset their lanes.
    assert sorted(rows) == [row for row in range(24) if row not in (9, 23)]
    assert rows != sorted(rows)


def test_a_minibatch_keeps_a_steps_fields_together() -> None:
    ppo = make()
    batch = batch_for(ppo)
    whole = {name: batch.rollout.flat(name) for name in PPO.minibatch_fields}
    for row in range(24):
        whole[f.ADVANTAGE][row] = row
    for minibatch in ppo.minibatches(batch, 5, 0, 0):
        rows = minibatch[f.ADVANTAGE].long()
        for name, field in whole.items():
            assert torch.equal(minibatch[name], field[rows])


def test_every_epoch_of_every_update_has_its_own_order() -> None:
    ppo = make()
    batch = batch_for(ppo)

    def order(*counters: int) -> list[float]:
        return torch.cat([m[f.RETURN].clone() for m in ppo.minibatches(batch, 7, *counters)]).tolist()

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(update, epoch)) for update in range(3) for epoch in range(3)}) == 9


def test_normalised_advantages_have_mean_zero_and_deviation_one_over_valid_steps() -> None:
    ppo, plain = make(normalize_advantage=True), make(normalize_advantage=False)
    invalid = ((0, 0), (1, 2), (3, 5))
    ours, raw = batch_for(ppo, invalid=invalid), batch_for(plain, invalid=invalid)
    expected = raw.rollout.flat(f.ADVANTAGE)[raw.valid_rows].double().numpy()
    expected = (expected - expected.mean()) / (expected.std() + 1e-8)
    got = ours.rollout.flat(f.ADVANTAGE)[ours.valid_rows].numpy()
    np.testing.assert_allclose(got, expected, atol=1e-5)
    # Returns are what the critic learns; normalising must not touch them.
    assert torch.equal(ours.rollout.flat(f.RETURN), raw.rollout.flat(f.RETURN))


def test_equal_advantages_do_not_divide_by_zero() -> None:
    ppo = make()
    batch = batch_for(ppo, num_lanes=1, num_steps=1)
    assert batch.rollout.flat(f.ADVANTAGE).tolist() == [0.0]


def test_one_update_is_the_loss_over_shuffled_minibatches_with_adam() -> None:
    """The update's loop again, with torch's own Adam and clipping on a second copy of the policy."""
    ppo, other = (make(batch_size=7, num_epochs=2, entropy_coef=0.01, learning_rate=3e-4) for _ in range(2))
    batch = batch_for(ppo, invalid=((1, 2),))
    minibatch = minibatch_of(batch)
    adam = torch.optim.Adam(list(other.policy.parameters()), lr=3e-4, eps=1e-5)
    progress = Progress(1000)
    progress.close_cycle(env_steps=100, episodes=1)
    entropies = []
    for epoch in range(2):
        order = Rng(0).generator("minibatches", 1, epoch).permutation(23)
        for start in range(0, 23, 7):
            rows = torch.from_numpy(order[start : start + 7])
            part = {name: field[rows] for name, field in minibatch.items()}
            expected = independent_loss(other, part, clip=0.2, clip_value=None, value_coef=0.5, entropy_coef=0.01)
            adam.zero_grad()
            expected["total"].backward()
            torch.nn.utils.clip_grad_norm_(other.policy.parameters(), 0.5)
            adam.step()
            entropies.append(expected["entropy"].item())
    metrics = ppo.update(batch, progress)
    for mine, theirs in zip(ppo.policy.parameters(), other.policy.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)
    assert metrics["train/entropy"] == pytest.approx(np.mean(entropies), abs=1e-5)
    assert metrics["train/num_epochs"] == 2
    assert metrics["train/learning_rate"] == 3e-4


def test_the_learning_rate_follows_its_schedule() -> None:
    ppo = make(learning_rate=Schedule(start=1e-3, end=0.0, shape="linear"), num_epochs=1)
    progress = Progress(1000)
    progress.close_cycle(env_steps=250, episodes=0)
    assert ppo.update(batch_for(ppo), progress)["train/learning_rate"] == pytest.approx(0.75e-3)


def test_a_target_kl_stops_after_the_epoch_that_passed_it() -> None:
    def epochs(target: float | None) -> float:
        ppo = make(learning_rate=0.02, num_epochs=8, batch_size=6, target_kl=target)
        return ppo.update(batch_for(ppo), Progress(1000))["train/num_epochs"]

    assert epochs(None) == 8
    assert epochs(1e-9) == 1
    assert epochs(1e9) == 8
    assert 1 < epochs(0.02) < 8


def test_a_target_kl_looks_at_the_mean_of_the_last_epoch_alone() -> None:
    ppo = make(num_epochs=5, batch_size=12, target_kl=0.5)
    batch = batch_for(ppo)
    # Two minibatches per epoch. The means are 0.4, 0.4, 0.45 and 0.55; summed up they would pass 0.5 in the second.
    kls = iter([0.3, 0.5, 0.2, 0.6, 0.4, 0.5, 0.5, 0.6])
    loss = ppo.loss

    def scripted_loss(minibatch: Any, fraction: float) -> Any:
        result = loss(minibatch, fraction)
        result.parts["train/approx_kl"] = torch.tensor(next(kls))
        return result

    ppo.loss = scripted_loss  # type: ignore[method-assign]
    assert ppo.update(batch, Progress(1000))["train/num_epochs"] == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_an_error(bad: float) -> None:
    ppo = make()
    batch = batch_for(ppo)
    batch.rollout.flat(f.RETURN)[3] = bad
    with pytest.raises(NonFiniteError, match=r"train/\w+ became (nan|inf) in the update at step 0") as failed:
        ppo.update(batch, Progress(1000))
    assert (failed.value.code, failed.value.exit_code) == ("E0604", 6)


def test_rewards_are_weighed_and_summed() -> None:
    ppo = make()
    batch = batch_for(ppo)
    signals = {
        "a": Extrinsic(ExtrinsicSettings(strength=2.0)),
        "b": Extrinsic(ExtrinsicSettings(strength=-0.5)),
    }
    weighed = PPO(PPOSettings(), ppo.policy, signals, Rng(0)).reward(batch.rollout)
    np.testing.assert_allclose(weighed, 1.5 * batch.rollout.array(f.REWARD)[:-1], rtol=1e-6)


def test_signals_with_different_discounts_are_refused() -> None:
    signals = {"a": Extrinsic(ExtrinsicSettings(gamma=0.9)), "b": Extrinsic(ExtrinsicSettings(gamma=0.99))}
    with pytest.raises(SettingsError, match=r"a\.gamma 0\.9, b\.gamma 0\.99"):
        PPO(PPOSettings(), make().policy, signals, Rng(0))


def test_the_algorithms_state_is_its_optimizer() -> None:
    ppo, restored = make(), make(seed=5)
    batch = batch_for(ppo)
    ppo.update(batch, Progress(1000))
    restored.policy.load_state_dict(ppo.policy.state_dict())
    restored.load_state_dict(ppo.state_dict())
    restored.sampler.rng = ppo.rng
    for algorithm in (ppo, restored):
        algorithm.update(batch, Progress(1000))
    assert torch.equal(ppo.optimizer.flat, restored.optimizer.flat)
