"""PPO with a reference: every term of the loss against scalars worked out by hand, chunks, versions and decay."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from quintain.algorithms.minibatches import split
from quintain.algorithms.online_ppo import OnlinePPO
from quintain.algorithms.online_settings import OnlinePPOSettings
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.errors import SettingsError
from quintain.policies.distribution import ActionDistribution
from quintain.policies.mine_adapter import MinePolicyAdapter
from quintain.policies.settings import MinePolicySettings
from tests.algorithms.samples import CHOICES, disturb, estimated, make_policy, rollout_of, signals
from tests.contracts.cases import make_trainer, run_file

TWO_OPTIONS = BehaviorSpec(obs=box(3), action=discrete(2))
PLAIN: dict[str, Any] = {"normalize_values": False, "zero_initial_values": False, "weight_decay": 0.0}


def make(spec: BehaviorSpec = TWO_OPTIONS, **settings: Any) -> OnlinePPO:
    return OnlinePPO(OnlinePPOSettings(**{**PLAIN, **settings}), make_policy(spec), signals(), Rng(0))


def make_mine(memory: dict[str, Any] | None, network: dict[str, Any] | None = None, **settings: Any) -> OnlinePPO:
    chosen = MinePolicySettings.model_validate({"network": {"hidden_size": 8, "memory": memory, **(network or {})}})
    policy = MinePolicyAdapter(chosen, CHOICES, Rng(0))
    with torch.no_grad():
        policy.network.pi_head.linear_layer.weight.mul_(100)
    settings = {"max_grad_norm": None, "zero_initial_values": False, **settings}
    return OnlinePPO(OnlinePPOSettings(**settings), policy, signals(), Rng(0))


def one_row(log_prob: float, old: float, advantage: float, **more: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns fields of one step as they were collected, and as they are now."""
    then = {
        f.LOG_PROB: old,
        f.ADVANTAGE: advantage,
        f.VALUE: more.get("old_value", 0.0),
        f.RETURN: more.get("target", 0.0),
    }
    now = {f.LOG_PROB: log_prob, f.ENTROPY: 0.0, f.VALUE: more.get("value", 0.0)}
    return tuple({name: torch.tensor([value]) for name, value in each.items()} for each in (then, now))  # type: ignore[return-value]


def fixed(
    monkeypatch: pytest.MonkeyPatch, algorithm: OnlinePPO, mine: tuple[float, ...], theirs: tuple[float, ...]
) -> dict[str, Any]:
    """Fixes the probabilities of policy and reference, and returns a minibatch of one step."""
    then, now = one_row(math.log(0.5), math.log(0.5), 2.0, value=1.0, old_value=1.0, target=3.0)
    for policy, probabilities in ((algorithm.policy, mine), (algorithm.reference, theirs)):
        output = torch.tensor([probabilities]).log()
        monkeypatch.setattr(policy, "evaluate_outputs", lambda batch, own=(now, policy.head, output): own)
    return then


# KL((.5, .5) || (.9, .1)) = .5 ln(.5 / .9) + .5 ln(.5 / .1) = -.2938933 + .8047190 = .5108256
# KL((.9, .1) || (.5, .5)) = .9 ln 1.8 + .1 ln .2 = .5290080 - .1609438 = .3680642
TO, FROM = 0.5108256, 0.3680642


@pytest.mark.parametrize(("direction", "kl"), [("to_reference", TO), ("from_reference", FROM)])
def test_the_loss_by_hand_with_both_divergences(direction: str, kl: float, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make(kl_coef=0.2, kl_decay=0.5, kl_direction=direction, policy_coef=3.0)
    minibatch = fixed(monkeypatch, algorithm, (0.5, 0.5), (0.9, 0.1))
    # Ratio 1, so the surrogate is -2; the value's error is 3 - 1, halved and squared 2; coefficients 3, 0.5, 0.2.
    assert float(algorithm.loss(minibatch, 0.0).total) == pytest.approx(3.0 * -2.0 + 0.5 * 2.0 + 0.2 * kl, abs=1e-6)
    assert float(algorithm.loss(minibatch, 0.0).parts["train/reference_kl"]) == pytest.approx(kl, abs=1e-6)
    algorithm.iteration = 3
    # 0.2 * 0.5 ^ 3 = 0.025.
    assert float(algorithm.loss(minibatch, 0.0).total) == pytest.approx(-6.0 + 1.0 + 0.025 * kl, abs=1e-6)


@pytest.mark.parametrize("kl_coef", [0.0, 0.2])
def test_the_policy_loss_has_a_coefficient_of_its_own_with_and_without_a_reference(
    kl_coef: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make(kl_coef=kl_coef, policy_coef=0.25, entropy_coef=0.1)
    then, now = one_row(math.log(0.5), math.log(0.5), 2.0, value=1.0, old_value=1.0, target=3.0)
    judged = {**now, f.ENTROPY: torch.tensor([0.7])}
    output = torch.tensor([[0.5, 0.5]]).log()
    for policy in filter(None, (algorithm.policy, algorithm.reference)):
        monkeypatch.setattr(policy, "evaluate_actions", lambda batch: judged)
        monkeypatch.setattr(policy, "evaluate_outputs", lambda batch, own=policy: (judged, own.head, output))
    # A surrogate of -2, an entropy of 0.7 whose bonus is not scaled, a value's error of 2, halved and squared, and the
    # reference itself.
    wanted = 0.25 * -2.0 - 0.1 * 0.7 + 0.5 * 2.0
    assert float(algorithm.loss(then, 0.0).total) == pytest.approx(wanted, abs=1e-6)
    assert float(algorithm.loss(then, 0.0).parts["train/policy_loss"]) == pytest.approx(-2.0)


def test_in_the_warm_up_values_and_the_divergence_alone_count(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make(kl_coef=0.0, value_warmup=2)
    minibatch = fixed(monkeypatch, algorithm, (0.5, 0.5), (0.9, 0.1))
    algorithm.iteration = 1
    assert float(algorithm.loss(minibatch, 0.0).total) == pytest.approx(0.5 * 2.0 + 1.0 * TO, abs=1e-6)
    algorithm.iteration = 2
    assert float(algorithm.loss(minibatch, 0.0).total) == pytest.approx(-2.0 + 0.5 * 2.0, abs=1e-6)


@pytest.mark.parametrize(
    ("log_prob", "old", "advantage", "loss"),
    [
        # Floored to -11: ratio e^1, of which -A e is the worse.
        (-13.0, -12.0, -1.0, math.e),
        # A positive advantage has no floor: ratio e^-1.
        (-13.0, -12.0, 1.0, -math.exp(-1.0)),
        # Above the floor nothing changes: ratio e^-1 is clipped to 0.8.
        (-6.0, -5.0, -1.0, 0.8),
        # The log-ratio of 6 is clamped to 2.
        (-1.0, -7.0, -1.0, math.exp(2.0)),
    ],
)
def test_floor_and_clamp_by_hand(log_prob: float, old: float, advantage: float, loss: float) -> None:
    algorithm = make(kl_coef=0.0, log_ratio_range=2.0)
    found = algorithm.surrogate(*one_row(log_prob, old, advantage), 0.0)
    assert float(found.total) == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize(("scale", "loss"), [(1.0, 1.62), (2.0, 0.32)])
def test_the_clipped_value_loss_by_hand(scale: float, loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make(kl_coef=0.0, clip_value=0.2)
    monkeypatch.setattr(type(algorithm.policy), "value_scale", scale)
    value, old, target = (torch.tensor([x]) for x in (1.0, 0.0, 2.0))
    # Scale 1: clipped to 0.2, errors 1 and 1.8, half of 3.24. Scale 2: 0.5 is clipped to 0.2, errors 0.5 and 0.8.
    assert float(algorithm.value_loss(value, old, target)) == pytest.approx(loss)


def test_clipping_the_value_compares_outputs_of_the_value_head(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make(kl_coef=0.0, clip_value=0.2)
    algorithm.old_moments = (4.0, 1.0)
    for name, now in (("value_mean", 10.0), ("value_scale", 2.0)):
        monkeypatch.setattr(type(algorithm.policy), name, now)
    value, old, target = (torch.tensor([x]) for x in (11.0, 4.1, 14.0))
    # The head said 0.1, as 4 + 1 * 0.1, and says 0.5, as 10 + 2 * 0.5: clipped to 0.3. The target is 2: half of 1.7^2.
    assert float(algorithm.value_loss(value, old, target)) == pytest.approx(0.5 * 1.7**2, rel=1e-5)


def test_statistics_that_move_clip_no_value() -> None:
    """The first returns move them far: their mean is 10 or more, and 0 is assumed before."""
    weights = []
    for clip in (None, 0.2):
        algorithm = make_mine(MEMORIES["lstm"], clip_value=clip, kl_coef=0.0, batch_size=24, zero_initial_values=True)
        batch = Batch(rollout_of(algorithm.policy))
        batch.rollout.storage[f.REWARD].add_(10.0)
        algorithm.estimate(batch)
        algorithm.update(batch, Progress(100))
        weights.append(torch.cat([each.detach().flatten() for each in algorithm.policy.parameters()]))
    torch.testing.assert_close(weights[1], weights[0], atol=1e-7, rtol=0)


def test_divergences_of_gaussians_by_hand() -> None:
    policy = make_policy(BehaviorSpec(obs=box(3), action=box(1)))
    with torch.no_grad():
        policy.head.parts[0].log_std.fill_(math.log(2.0))
    mine, theirs = (ActionDistribution(policy.head, torch.tensor([[mean]])) for mean in (1.0, 4.0))
    # Equal deviations of 2: (1 - 4)^2 / (2 * 4) = 1.125.
    assert float(mine.kl(theirs).detach()) == pytest.approx(1.125)
    assert float(mine.kl(mine).detach()) == 0.0


MEMORIES = {
    "none": None,
    "lstm": {"cell": "lstm", "size": 5},
    "transformer": {"cell": "transformer", "size": 8, "window": 4},
}


@pytest.mark.parametrize("memory", MEMORIES)
def test_gradients_are_equal_for_any_split_and_order(memory: str) -> None:
    algorithm = make_mine(MEMORIES[memory], kl_coef=0.3, clip_value=0.2, entropy_coef=0.01)
    batch = estimated(algorithm, invalid=((1, 2),), first=((0, 3), (2, 1)))
    disturb(algorithm.policy)
    size = 24
    [whole] = [{name: each.clone() for name, each in m.items()} for m in algorithm.minibatches(batch, size, 0)]
    parts = list(split(whole, 6))
    if memory == "none":
        backwards = {name: torch.cat([part[name] for part in reversed(parts)]) for name in whole}
    else:
        lanes = len(whole[f.POLICY_STATE])
        turned = {
            n: x.view(-1, lanes, *x.shape[1:]).flip(1).flatten(0, 1) for n, x in whole.items() if n != f.POLICY_STATE
        }
        backwards = {**turned, f.POLICY_STATE: whole[f.POLICY_STATE].flip(0)}
    found = []
    state = {name: each.clone() for name, each in algorithm.policy.state_dict().items()}
    for minibatch, micro in ((whole, None), (whole, 12), (whole, 6), (backwards, None), (backwards, 6)):
        algorithm.policy.load_state_dict(state)
        algorithm.gradient_step(minibatch, 0.0, 0.0, micro)
        found.append(algorithm.optimizer.grad.clone())
    assert float(found[0].abs().max()) > 1e-2
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-6, rtol=0)


def test_statistics_of_values_move_once_in_each_step_of_the_optimizer() -> None:
    weights = []
    for micro in (None, 6):
        algorithm = make_mine(MEMORIES["lstm"], batch_size=12, num_epochs=2, micro_batch_size=micro, clip_value=0.2)
        algorithm.update(estimated(algorithm), Progress(100))
        normalizer = algorithm.policy.network.value_head.normalizer
        # 24 steps in minibatches of 12, twice: 4 steps, each of which leaves 0.99999 of what was missing.
        assert float(normalizer.debiasing_term) == pytest.approx(1.0 - 0.99999**4, rel=1e-3)
        weights.append(normalizer.running_mean.clone())
    torch.testing.assert_close(weights[0], weights[1])


def test_ratios_of_the_first_minibatch_are_1_with_dropout_in_the_policy() -> None:
    algorithm = make_mine(MEMORIES["lstm"], {"dropout": 0.5})
    algorithm.policy.train()
    batch = estimated(algorithm, first=((0, 3), (2, 1)))
    for minibatch in algorithm.minibatches(batch, 12, 0):
        now = algorithm.policy.evaluate_actions(minibatch)[f.LOG_PROB]
        torch.testing.assert_close((now - minibatch[f.LOG_PROB]).exp(), torch.ones_like(now), atol=1e-5, rtol=0)


def test_weights_decay_except_in_groups_of_their_own() -> None:
    algorithm = make(weight_decay=0.04, parameter_groups={"values": {"parameters": "critic.*"}})
    decays = {piece.weight_decay: sum(map(len, piece.weights)) for piece in algorithm.optimizer.pieces}
    critic = sum(parameter.numel() for parameter in algorithm.policy.critic.parameters())
    everything = sum(parameter.numel() for parameter in algorithm.policy.parameters())
    assert decays == {0.04: everything - critic, 0.0: critic}


def test_parameters_without_gradients_neither_learn_nor_decay() -> None:
    """A frozen encoder, or a normaliser that keeps its statistics in parameters, as MineStudio's does."""
    policy = make_mine(None).policy
    policy.network.latent[0].requires_grad_(False)
    algorithm = OnlinePPO(OnlinePPOSettings(weight_decay=0.5, learning_rate=0.1), policy, signals(), Rng(0))
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    algorithm.update(estimated(algorithm), Progress(100))
    same = {name for name, parameter in policy.named_parameters() if torch.equal(parameter, before[name])}
    assert same == {"network.latent.0.weight", "network.latent.0.bias"}


def test_no_version_is_made_in_the_warm_up() -> None:
    settings = run_file(algorithm="online_ppo", cycles=4).replace(
        "experiment.behaviors.default.algorithm.value_warmup", 2
    )
    trainer = make_trainer(settings)
    seen = []
    for _ in range(4):
        trainer.advance()
        assert trainer.batch is not None
        seen.append(
            (
                trainer.progress.updates,
                trainer.progress.version,
                int(trainer.batch.rollout.array(f.POLICY_VERSION).max()),
            )
        )
    # Updates, version after the update, version that acted.
    assert seen == [(1, 0, 0), (2, 0, 0), (3, 1, 0), (4, 2, 1)]


def test_a_record_of_rewards_makes_the_policy_the_reference() -> None:
    algorithm = make(kl_coef=0.1, update_reference=True, batch_size=24)
    batch = estimated(algorithm)
    disturb(algorithm.policy)

    def is_reference() -> bool:
        pairs = zip(algorithm.policy.parameters(), algorithm.reference.parameters(), strict=True)
        return all(torch.equal(mine, theirs) for mine, theirs in pairs)

    wanted = [parameter.clone() for parameter in algorithm.policy.parameters()]
    algorithm.update(batch, Progress(100))
    assert all(torch.equal(mine, own) for mine, own in zip(wanted, algorithm.reference.parameters(), strict=True))
    best = algorithm.best_reward
    algorithm.update(batch, Progress(100))
    # The same rewards are no record.
    assert not is_reference()
    assert algorithm.best_reward == best


@pytest.mark.parametrize("direction", ["to_reference", "from_reference"])
def test_a_reference_with_the_same_weights_is_at_no_distance_whatever_the_hidden_state(direction: str) -> None:
    """It reads the hidden state that the acting policy had. From zero it would have forgotten the episode so far."""
    algorithm = make_mine(MEMORIES["lstm"], kl_coef=1.0, kl_direction=direction)
    disturb(algorithm.policy)
    assert algorithm.reference is not None
    algorithm.reference.load_state_dict(algorithm.policy.state_dict())
    for minibatch in algorithm.minibatches(estimated(algorithm, first=((0, 3),)), 24, 0):
        assert float(minibatch[f.POLICY_STATE].abs().max()) > 0.1
        parts = algorithm.loss(minibatch, 0.0).parts
        assert float(parts["train/reference_kl"]) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_return_that_is_not_finite_moves_no_statistics_and_costs_one_update(bad: float) -> None:
    trainer = make_trainer(run_file(algorithm="online_ppo", cycles=4))
    estimate, normalizer = trainer.algorithm.estimate, trainer.policy.network.value_head.normalizer

    def spoiled(batch: Any) -> None:
        estimate(batch)
        if trainer.progress.updates == 1:
            batch.rollout.storage[f.RETURN].fill_(bad)

    trainer.algorithm.estimate = spoiled  # type: ignore[method-assign]
    trainer.advance()
    before = normalizer.running_mean.clone()
    trainer.advance()
    assert trainer.guard.in_a_row == 1
    assert torch.equal(normalizer.running_mean, before)
    trainer.advance()
    assert trainer.guard.in_a_row == 0
    assert float(normalizer.running_mean) != float(before)


def test_reference_and_record_are_state() -> None:
    """A resumed run makes the policy anew, from its seed: a reference that began elsewhere has to come back."""
    one, other = (make(kl_coef=0.1, update_reference=True) for _ in range(2))
    assert one.reference is not None
    assert other.reference is not None
    disturb(one.reference)
    one.best_reward = 3.0
    other.load_state_dict(one.state_dict())
    pairs = zip(one.reference.parameters(), other.reference.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    assert other.best_reward == 3.0


def test_a_policy_without_a_normalizer_is_refused() -> None:
    with pytest.raises(SettingsError, match="normalize_values: a ActorCritic cannot do that") as refused:
        make(normalize_values=True)
    assert refused.value.code == "E0243"
