"""Heads agree with torch.distributions, and sample as the inverse of the cumulative distribution says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from quintain.core.rng import Rng
from quintain.data.spec import box, discrete
from quintain.policies.heads import CategoricalHead, GaussianHead, NoiseSpec
from quintain.policies.settings import ActorCriticSettings


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def sampled(head, output: torch.Tensor, noise: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    log_prob = head.sample(output, noise, action, None)
    return action, log_prob


def test_categorical_log_probabilities_and_entropies_are_torchs() -> None:
    output, action = 3 * random(50, 5), torch.arange(50) % 5
    log_prob, entropy = CategoricalHead(discrete(5)).evaluate(output, action, None)
    oracle = Categorical(logits=output)
    torch.testing.assert_close(log_prob, oracle.log_prob(action), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(entropy, oracle.entropy(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("noise", "expected"),
    # Probabilities 0.2, 0.5, 0.3, cumulative 0.2, 0.7, 1.0.
    [(0.0, 0), (0.19, 0), (0.21, 1), (0.69, 1), (0.71, 2), (1.0 - 2.0**-24, 2)],
)
def test_a_choice_is_the_first_whose_cumulative_probability_exceeds_the_noise(noise: float, expected: int) -> None:
    output = torch.tensor([[0.2, 0.5, 0.3]]).log()
    action, log_prob = sampled(
        CategoricalHead(discrete(3)), output, torch.tensor([[noise]]), torch.zeros(1, dtype=torch.int64)
    )
    assert action.item() == expected
    assert log_prob.item() == pytest.approx(math.log((0.2, 0.5, 0.3)[expected]), abs=1e-6)


def test_an_impossible_first_choice_is_not_taken_at_noise_zero() -> None:
    output = torch.tensor([[-math.inf, 0.0]])
    action, log_prob = sampled(
        CategoricalHead(discrete(2)), output, torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)
    )
    assert (action.item(), log_prob.item()) == (1, 0.0)


def test_a_single_choice_is_always_taken() -> None:
    action, log_prob = sampled(
        CategoricalHead(discrete(1)), random(4, 1), torch.full((4, 1), 0.9), torch.ones(4, dtype=torch.int64)
    )
    assert action.tolist() == [0, 0, 0, 0]
    assert log_prob.tolist() == [0, 0, 0, 0]


def test_choices_come_as_often_as_their_probabilities_say() -> None:
    noise = np.zeros((20_000, 1, 1), np.float32)
    Rng(0).fill_uniform(noise, "action", 0)
    output = torch.tensor([0.1, 0.2, 0.7]).log().expand(20_000, 3)
    action, _ = sampled(
        CategoricalHead(discrete(3)), output, torch.from_numpy(noise[:, 0]), torch.zeros(20_000, dtype=torch.int64)
    )
    frequency = torch.bincount(action, minlength=3) / 20_000
    # Five deviations: 5 * sqrt(0.7 * 0.3 / 20000) = 0.0162.
    torch.testing.assert_close(frequency, torch.tensor([0.1, 0.2, 0.7]), atol=0.0162, rtol=0)


def test_the_mode_is_the_likeliest_choice() -> None:
    action = torch.zeros(2, dtype=torch.int64)
    output = torch.tensor([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0]])
    log_prob = CategoricalHead(discrete(3)).mode(output, action, None)
    assert action.tolist() == [1, 0]
    torch.testing.assert_close(log_prob, Categorical(logits=output).log_prob(action))


def gaussian(*shape: int) -> GaussianHead:
    head = GaussianHead(box(*shape), ActorCriticSettings())
    with torch.no_grad():
        head.log_std.copy_(0.5 * random(head.output_size, seed=9))
    return head


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2)])
def test_gaussian_log_probabilities_and_entropies_are_torchs(shape: tuple[int, ...]) -> None:
    head = gaussian(*shape)
    output, action = random(40, head.output_size), random(40, *shape, seed=1)
    log_prob, entropy = head.evaluate(output, action, None)
    oracle = Independent(Normal(output, head.log_std.exp()), 1)
    torch.testing.assert_close(log_prob, oracle.log_prob(action.reshape(40, -1)), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, oracle.entropy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_gaussian_actions_are_mean_plus_spread_times_noise(shape: tuple[int, ...]) -> None:
    head = gaussian(*shape)
    output, noise = random(7, head.output_size), random(7, head.output_size, seed=2)
    with torch.no_grad():
        action, log_prob = sampled(head, output, noise, torch.zeros(7, *shape))
        torch.testing.assert_close(action.reshape(7, -1), output + head.log_std.exp() * noise)
        oracle = Independent(Normal(output, head.log_std.exp()), 1).log_prob(action.reshape(7, -1))
    torch.testing.assert_close(log_prob, oracle, atol=1e-5, rtol=1e-5)


def test_the_mode_of_a_gaussian_is_its_mean() -> None:
    head, output, action = gaussian(3), random(4, 3), torch.zeros(4, 3)
    with torch.no_grad():
        log_prob = head.mode(output, action, None)
        oracle = Independent(Normal(output, head.log_std.exp()), 1).log_prob(output)
    assert torch.equal(action, output)
    torch.testing.assert_close(log_prob, oracle, atol=1e-6, rtol=1e-6)


def test_each_head_says_how_much_noise_it_takes() -> None:
    assert CategoricalHead(discrete(5)).noise == NoiseSpec(num_uniform=1)
    assert gaussian(2, 2).noise == NoiseSpec(num_normal=4)
    assert (NoiseSpec(num_uniform=1).size, NoiseSpec(num_normal=4).size, NoiseSpec(2, 3).size) == (1, 4, 5)
