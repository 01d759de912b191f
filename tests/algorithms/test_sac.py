"""Soft actor-critic against a second implementation, and its parts by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.sac import NEXT_NOISE, SAC
from quintain.algorithms.settings import SACSettings
from quintain.algorithms.temperature import Temperature, discrete_entropy
from quintain.algorithms.twin_critics import TwinCritics
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete, multi_discrete
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings, SoftActorSettings
from quintain.policies.soft_actor import ActionSample, SoftActor
from quintain.rollouts.replay import ReplayBuffer
from quintain.rollouts.settings import ReplaySettings
from tests.algorithms.plain_sac import PlainSAC, Row
from tests.declared import declared

NUMBERS = BehaviorSpec(obs=box(3), action=box(2, low=-2.0, high=2.0))
CHOICES = BehaviorSpec(obs=box(3), action=discrete(4))
MASKED = BehaviorSpec(obs=box(3), action=discrete(4), mask_size=4)
HYBRID = BehaviorSpec(
    obs=box(3),
    action=DictSpec((("go", discrete(2)), ("push", box(2, low=-1.0, high=1.0)), ("turn", multi_discrete(3, 2)))),
)
SIZE = 12


def make(spec: BehaviorSpec, **settings: Any) -> SAC:
    policy = SoftActor(SoftActorSettings(hidden_sizes=(8, 8)), spec, Rng(1))
    with torch.no_grad():
        # The last layer of a fresh actor is small, which could hide a wrong gradient behind it.
        for parameter in policy.actor[-1].parameters():
            parameter.add_(torch.linspace(-0.5, 0.5, parameter.numel()).view_as(parameter))
    algorithm = SAC(SACSettings(**settings), policy, None, Rng(2))
    with torch.no_grad():
        for parameter in algorithm.targets.parameters():
            parameter.mul_(0.7)
    return algorithm


def minibatch(spec: BehaviorSpec, num_continuous: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    rows = {
        "obs": normal(SIZE, 3),
        "next_obs": normal(SIZE, 3),
        "reward": normal(SIZE),
        "discount": torch.tensor([0.99, 0.0, 0.97] * 4),
        "noise": normal(SIZE, num_continuous),
        "next_noise": normal(SIZE, num_continuous),
    }
    if spec is HYBRID:
        rows |= {"action.go": torch.randint(2, (SIZE,), generator=draw), "action.push": normal(SIZE, 2)}
        columns = [torch.randint(n, (SIZE,), generator=draw) for n in (3, 2)]
        return {**rows, "action.turn": torch.stack(columns, dim=1)}
    if spec is NUMBERS:
        return {**rows, "action": normal(SIZE, 2)}
    rows["action"] = torch.randint(4, (SIZE,), generator=draw)
    if spec is MASKED:
        for name in ("action_mask", "next_action_mask"):
            rows[name] = torch.rand(SIZE, 4, generator=draw) < 0.6
            rows[name][torch.arange(SIZE), rows["action"]] = True
    return rows


def rows_of(batch: dict[str, torch.Tensor]) -> list[Row]:
    return [{name: field[i] for name, field in batch.items()} for i in range(SIZE)]


def gradients(algorithm: SAC, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    algorithm.optimizer.clear()
    algorithm.optimizer.add(algorithm.loss(batch, 0.0).total)
    return {name: p.grad.clone() for name, p in algorithm.optimizer.parameters.items() if p.grad is not None}


@pytest.mark.parametrize("spec", [NUMBERS, CHOICES, MASKED], ids=["numbers", "choices", "masked choices"])
def test_losses_and_gradients_are_those_of_the_plain_implementation(spec: BehaviorSpec) -> None:
    algorithm = make(spec, initial_entropy_coef=0.3)
    kind = "numbers" if spec is NUMBERS else "choices"
    batch = minibatch(spec, 2 if spec is NUMBERS else 0)
    plain = PlainSAC(algorithm, {kind: 0.3})
    losses = plain.losses_of_numbers if spec is NUMBERS else plain.losses_of_choices
    expected = plain.means(rows_of(batch), losses)

    loss = algorithm.loss(batch, 0.0)
    close = {"atol": 2e-5, "rtol": 1e-4}
    torch.testing.assert_close(loss.parts["train/critic_loss"], expected["critic"].detach(), **close)
    torch.testing.assert_close(loss.parts["train/policy_loss"], expected["policy"].detach(), **close)
    torch.testing.assert_close(loss.parts["train/entropy"], expected["entropy"].detach(), **close)

    found = gradients(algorithm, batch)
    actor = torch.autograd.grad(expected["policy"], list(plain.actor.parameters()), retain_graph=True)
    ours = [found[name] for name, _ in algorithm.policy.named_parameters()]
    for mine, theirs in zip(ours, actor, strict=True):
        torch.testing.assert_close(mine, theirs, **close)
    for which, critic in enumerate(plain.critics):
        theirs = torch.autograd.grad(expected["critic"], list(critic.parameters()), retain_graph=True)
        for layer in range(3):
            weight, bias = found[f"critics.weights.{layer}"][which], found[f"critics.biases.{layer}"][which, 0]
            torch.testing.assert_close(weight.T, theirs[2 * layer], **close)
            torch.testing.assert_close(bias, theirs[2 * layer + 1], **close)


def test_hybrid_actions_by_hand() -> None:
    """Every combination of the three choices is listed, with its own joint probability and its own sum of values."""
    algorithm = make(HYBRID, initial_entropy_coef=0.25)
    batch = minibatch(HYBRID, 2)
    proposal = algorithm.policy.propose(batch, batch["noise"])
    assert proposal.continuous is not None
    assert proposal.log_prob is not None
    assert proposal.discrete_log_probs is not None
    values = algorithm.critics.values(algorithm.critics.encode(batch), proposal.continuous)
    assert values.shape == (2, SIZE, 2 + 3 + 2)
    worst, log_probs = values.amin(dim=0), proposal.discrete_log_probs
    expected = torch.zeros(SIZE)
    for go in range(2):
        for turn in range(3):
            for tilt in range(2):
                places = [go, 2 + turn, 5 + tilt]
                joint = log_probs[:, places].sum(dim=1)
                expected += joint.exp() * (worst[:, places].sum(dim=1) - 0.25 * joint)
    expected -= 0.25 * proposal.log_prob
    torch.testing.assert_close(algorithm._soft_value(worst, proposal), expected, atol=1e-5, rtol=1e-5)
    taken = algorithm._of_actions_taken(values, batch)
    row = 5
    places = [
        int(batch["action.go"][row]),
        2 + int(batch["action.turn"][row, 0]),
        5 + int(batch["action.turn"][row, 1]),
    ]
    torch.testing.assert_close(taken[:, row], values[:, row, places].sum(dim=1))
    found = gradients(algorithm, batch)
    assert all(gradient.any() for gradient in found.values())
    parts = algorithm.loss(batch, 0.0).parts
    assert {"train/entropy_continuous", "train/entropy_discrete"} <= parts.keys()


def test_the_temperature_rises_below_its_target_and_falls_above() -> None:
    temperature = Temperature(SACSettings(), 2, ())
    # Two numbers: the target is -2. Entropies of -3 and -1 average to it; with -4 there is 1 too little.
    for log_probs, expected in (((3.0, 1.0), 0.0), ((4.0, 2.0), -1.0), ((1.0, 1.0), 1.0)):
        proposal = ActionSample(torch.zeros(2, 2), torch.tensor(log_probs), None)
        temperature.zero_grad()
        loss = temperature.loss(proposal, None)
        assert isinstance(loss, torch.Tensor)
        [gradient] = torch.autograd.grad(loss, list(temperature.parameters()))
        assert float(gradient) == pytest.approx(expected)


def test_targets_are_settings() -> None:
    assert Temperature(SACSettings(target_entropy=-0.5), 3, ()).target_continuous == -0.5
    assert Temperature(SACSettings(), 3, ()).target_continuous == -3.0
    chosen = Temperature(SACSettings(target_entropy_fraction=0.25), 0, (4, 2))
    assert chosen.target_discrete == pytest.approx(0.25 * (math.log(4) + math.log(2)))


def test_forbidden_choices_lower_the_target() -> None:
    temperature = Temperature(SACSettings(target_entropy_fraction=0.5), 0, (4, 2))
    mask = torch.tensor([[True, True, False, False, True, False], [True] * 6])
    found = temperature._discrete_target(mask)
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == pytest.approx([0.5 * math.log(2), 0.5 * math.log(8)])


def test_entropy_of_choices_by_hand() -> None:
    log_probs = torch.tensor([[0.5, 0.5, 0.25, 0.75]]).log()
    expected = math.log(2) - 0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert float(discrete_entropy(log_probs)) == pytest.approx(expected)


def test_a_fixed_weight_stays() -> None:
    algorithm = make(NUMBERS, entropy_coef=0.0)
    parts = algorithm.loss(minibatch(NUMBERS, 2), 0.0).parts
    assert float(parts["train/entropy_coef"]) == 0.0
    assert not list(algorithm.temperature.parameters())


def test_targets_follow_a_part_of_the_way() -> None:
    algorithm = make(NUMBERS)
    old = [p.clone() for p in algorithm.targets.parameters()]
    algorithm.targets.soft_update_(algorithm.critics, 0.25)
    for before, now, goal in zip(old, algorithm.targets.parameters(), algorithm.critics.parameters(), strict=True):
        torch.testing.assert_close(now, 0.75 * before + 0.25 * goal.detach(), atol=1e-6, rtol=0)


def test_two_critics_are_two_networks() -> None:
    critics = TwinCritics({"obs": box(3)}, 2, 0, SoftActorSettings(hidden_sizes=(8,)), torch.Generator().manual_seed(0))
    first, second = critics.values(torch.ones(4, 3), torch.ones(4, 2))
    assert not torch.allclose(first, second)
    with torch.no_grad():
        critics.weights[1][1].zero_()
        critics.biases[1][1].zero_()
    again, changed = critics.values(torch.ones(4, 3), torch.ones(4, 2))
    assert torch.equal(again, first)
    assert not changed.any()


def test_critics_begin_small() -> None:
    critics = TwinCritics({"obs": box(3)}, 1, 0, SoftActorSettings(hidden_sizes=(400,)), torch.Generator())
    # Between -1 and 1 over the root of the inputs, 4 and 400: 0.5 and 0.05, with a deviation of a root of 3 less.
    for weight, bias, bound in zip(critics.weights, critics.biases, (0.5, 0.05), strict=True):
        assert max(weight.abs().max(), bias.abs().max()) <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3.0), rel=0.1)
        assert bias.any()


def filled(num_lanes: int = 2, num_return_steps: int = 1, **settings: Any) -> tuple[SAC, Batch]:
    algorithm = make(NUMBERS, batch_size=4, **settings)
    block = Rollout(NUMBERS, num_lanes=num_lanes, num_steps=1, fields=declared(2))
    block.begin(1, version=0)
    store = ReplayBuffer(block, settings=ReplaySettings(buffer_size=100, num_return_steps=num_return_steps))
    return algorithm, store.take()


@pytest.mark.parametrize(
    ("ratio", "lanes", "expected"),
    [
        (1.0, 1, [1, 1, 1, 1, 1, 1]),
        (2.5, 1, [2, 3, 2, 3, 2, 3]),
        (0.25, 1, [0, 0, 0, 1, 0, 0]),
        (0.5, 3, [1, 2, 1, 2, 1, 2]),
        (4.0, 2, [8] * 6),
    ],
)
def test_gradient_steps_keep_to_the_ratio(ratio: float, lanes: int, expected: list[int]) -> None:
    algorithm, batch = filled(lanes, updates_per_step=ratio, learning_starts=1)
    progress, counts = Progress(1000), []
    for _ in expected:
        algorithm.estimate(batch)
        before = float(algorithm.optimizer.num_steps)
        algorithm.update(batch, progress)
        counts.append(float(algorithm.optimizer.num_steps) - before)
        progress.close_cycle(env_steps=batch.num_valid, episodes=0)
    assert counts == expected


def test_nothing_is_learned_and_actions_are_random_before_the_start() -> None:
    algorithm, batch = filled(2, learning_starts=5)
    progress, seen = Progress(1000), []
    for _ in range(4):
        algorithm.estimate(batch)
        metrics = algorithm.update(batch, progress)
        seen.append((bool(metrics), bool(algorithm.policy.acts_at_random)))
        progress.close_cycle(env_steps=2, episodes=0)
    # Two steps in a cycle: the fifth step is in the third.
    assert seen == [(False, True), (False, True), (True, False), (True, False)]


def test_learning_waits_for_the_first_complete_transition() -> None:
    algorithm, batch = filled(1, num_return_steps=3, learning_starts=1)
    progress, seen = Progress(1000), []
    for _ in range(4):
        algorithm.estimate(batch)
        seen.append(bool(algorithm.update(batch, progress)))
        progress.close_cycle(env_steps=1, episodes=0)
    assert seen == [False, False, True, True]


def test_minibatches_depend_on_the_counters_alone() -> None:
    algorithm, batch = filled(1, learning_starts=1)
    for number in range(50):
        batch.rollout.storage[f.REWARD][0] = number
        algorithm.estimate(batch)

    def draw(*counters: int) -> np.ndarray:
        [found] = algorithm.minibatches(batch, 64, *counters)
        return np.concatenate((found[f.REWARD].numpy(), found[f.NOISE].numpy().ravel()))

    first = draw(3, 0)
    np.testing.assert_array_equal(first, draw(3, 0))
    assert not np.array_equal(first, draw(3, 1))
    assert not np.array_equal(first, draw(4, 0))
    # Evenly from all 50, with repetitions: 64 draws of 50 leave about 50 * (49/50)^64 = 14 out.
    assert 28 <= len(set(first[:64].tolist())) <= 46


def test_noise_of_the_next_action_has_nothing_to_do_with_that_of_the_current_one() -> None:
    algorithm, batch = filled(1, learning_starts=1)
    algorithm.estimate(batch)
    [found] = algorithm.minibatches(batch, 2000, 3, 0)
    now, after = (found[name].numpy().ravel() for name in (f.NOISE, NEXT_NOISE))
    # 4000 pairs of independent numbers: five deviations of their correlation are 0.08.
    assert abs(np.corrcoef(now, after)[0, 1]) < 0.08


def test_an_update_is_one_adam_step_down_the_gradient_and_then_the_targets_follow() -> None:
    algorithm, batch = filled(2, learning_starts=1, updates_per_step=0.5, learning_rate=1e-3)
    algorithm.estimate(batch)
    progress = Progress(1000)
    [drawn] = algorithm.minibatches(batch, 4, progress.updates, 0)
    gradient = gradients(algorithm, {name: field.clone() for name, field in drawn.items()})
    before = {name: p.detach().clone() for name, p in algorithm.optimizer.parameters.items()}
    old_targets = [p.clone() for p in algorithm.targets.parameters()]
    algorithm.update(batch, progress)
    for name, parameter in algorithm.optimizer.parameters.items():
        # Adam's first step is lr * g / (|g| + eps): the moments' bias corrections cancel.
        expected = before[name] - 1e-3 * gradient[name] / (gradient[name].abs() + 1e-8)
        torch.testing.assert_close(parameter.detach(), expected, atol=2e-6, rtol=0)
    for old, now, goal in zip(old_targets, algorithm.targets.parameters(), algorithm.critics.parameters(), strict=True):
        torch.testing.assert_close(now, old + 0.005 * (goal.detach() - old), atol=1e-6, rtol=0)


def test_scaled_observations_are_scaled_alike_everywhere() -> None:
    policy = SoftActor(SoftActorSettings(hidden_sizes=(8,), normalize_obs=True), NUMBERS, Rng(1))
    algorithm = SAC(SACSettings(), policy, None, Rng(2))
    algorithm.observe({"obs": np.random.default_rng(0).normal(3.0, 5.0, (50, 3))})
    scales = [module.encoder.normalizer.scale for module in (policy, algorithm.critics, algorithm.targets)]
    assert torch.equal(scales[0], scales[1])
    assert torch.equal(scales[0], scales[2])
    assert not torch.allclose(scales[0], torch.ones(3))


def test_another_policy_is_refused() -> None:
    policy = ActorCritic(ActorCriticSettings(), NUMBERS, Rng(0))
    with pytest.raises(SettingsError, match=r"use policy\.type soft_actor") as refused:
        SAC(SACSettings(), policy)
    assert refused.value.code == "E0224"
