"""Several choices, masks, squashed and state-dependent Gaussians, against torch.distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from quintain.compiled.kernels import heads as kernel_heads
from quintain.compiled.kernels.heads import mean_log_slope
from quintain.core.rng import Rng
from quintain.data.spec import DictSpec, TupleSpec, box, discrete, multi_discrete
from quintain.policies import heads
from quintain.policies.heads import CategoricalHead, GaussianHead, MultiCategoricalHead, NoiseSpec
from quintain.policies.joint_head import JointHead
from quintain.policies.settings import ActorCriticSettings

ROWS = 200


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def uniform(*shape: int) -> torch.Tensor:
    noise = np.zeros((shape[0], 1, shape[1]), np.float32)
    Rng(3).fill_uniform(noise, "test", 0)
    return torch.from_numpy(noise[:, 0])


def some_mask(rows: int, sizes: tuple[int, ...], seed: int = 5) -> torch.Tensor:
    """Forbids about half of the options, never all of one choice."""
    generator, parts = np.random.default_rng(seed), []
    for size in sizes:
        part = generator.random((rows, size)) < 0.5
        part[np.arange(rows), generator.integers(0, size, rows)] = True
        parts.append(part)
    return torch.from_numpy(np.concatenate(parts, axis=1))


def oracle(output: torch.Tensor, mask: torch.Tensor | None = None) -> Categorical:
    """Torch's own categorical over the allowed options, by probabilities instead of logits."""
    weight = torch.softmax(output.double(), dim=-1) * (1.0 if mask is None else mask.double())
    return Categorical(probs=weight, validate_args=False)


def entropy_of(distribution: Categorical) -> torch.Tensor:
    probs = distribution.probs
    return -torch.where(probs > 0, probs * probs.clamp_min(1e-300).log(), 0.0).sum(-1)


def test_masked_log_probabilities_and_entropies_are_those_of_the_allowed_choices() -> None:
    head, output, mask = CategoricalHead(discrete(5)), 3 * random(ROWS, 5), some_mask(ROWS, (5,))
    action = torch.zeros(ROWS, dtype=torch.int64)
    sampled = head.sample(output, uniform(ROWS, 1), action, mask)
    log_prob, entropy = head.evaluate(output, action, mask)
    expected = oracle(output, mask)
    torch.testing.assert_close(log_prob.double(), expected.log_prob(action), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sampled, log_prob, atol=1e-6, rtol=0)
    torch.testing.assert_close(entropy.double(), entropy_of(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("noise", [0.0, 0.3, 0.999, 1.0 - 2.0**-24])
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_a_forbidden_choice_is_never_taken(noise: float, scale: float) -> None:
    head, output = CategoricalHead(discrete(4)), scale * random(64, 4)
    mask, action = some_mask(64, (4,)), torch.zeros(64, dtype=torch.int64)
    for log_prob in (head.sample(output, torch.full((64, 1), noise), action, mask), head.mode(output, action, mask)):
        assert mask[torch.arange(64), action].all()
        assert torch.isfinite(log_prob).all()


def test_what_rounding_leaves_over_goes_to_the_last_choice_that_is_allowed() -> None:
    # The cumulative probabilities of 400 options end a little below one, and the noise lies between.
    head, output = CategoricalHead(discrete(800)), random(64, 800)
    mask = (torch.arange(800) < 400).expand(64, 800)
    noise, action = torch.full((64, 1), 1.0 - 2.0**-24), torch.zeros(64, dtype=torch.int64)
    reached = torch.log_softmax(output.masked_fill(~mask, -1e9), 1).exp().cumsum(1)[:, -1:]
    assert (reached <= noise).any()
    head.sample(output, noise, action, mask)
    assert (action < 400).all()
    assert (action[(reached <= noise).squeeze(1)] == 399).all()


def test_masked_choices_come_as_often_as_their_probabilities_say() -> None:
    rows = 20_000
    output = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(rows, 4)
    mask = torch.tensor([True, False, True, False]).expand(rows, 4)
    action = torch.zeros(rows, dtype=torch.int64)
    CategoricalHead(discrete(4)).sample(output, uniform(rows, 1), action, mask)
    frequency = torch.bincount(action, minlength=4) / rows
    # 0.1 : 0.3 among the allowed. Five deviations: 5 * sqrt(0.25 * 0.75 / 20000) = 0.0153.
    torch.testing.assert_close(frequency, torch.tensor([0.25, 0.0, 0.75, 0.0]), atol=0.0153, rtol=0)


def test_forbidden_choices_get_no_gradient() -> None:
    output = random(6, 4).requires_grad_()
    mask = torch.tensor([True, False, True, True]).expand(6, 4)
    log_prob, entropy = CategoricalHead(discrete(4)).evaluate(output, torch.zeros(6, dtype=torch.int64), mask)
    (log_prob.sum() + entropy.sum()).backward()
    assert torch.isfinite(output.grad).all()
    assert not output.grad[:, 1].any()
    assert output.grad[:, [0, 2, 3]].all()


@pytest.mark.parametrize("is_masked", [False, True])
def test_several_choices_are_independent_categoricals(is_masked: bool) -> None:
    sizes = (2, 4, 3)
    head, output = MultiCategoricalHead(multi_discrete(*sizes)), 2 * random(ROWS, 9)
    mask = some_mask(ROWS, sizes) if is_masked else None
    action = torch.zeros(ROWS, 3, dtype=torch.int64)
    sampled = head.sample(output, uniform(ROWS, 3), action, mask)
    log_prob, entropy = head.evaluate(output, action, mask)
    parts = zip(output.split(sizes, 1), [None] * 3 if mask is None else mask.split(sizes, 1), strict=True)
    oracles = [oracle(*part) for part in parts]
    expected = sum(one.log_prob(action[:, i]) for i, one in enumerate(oracles))
    torch.testing.assert_close(log_prob.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sampled, log_prob, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy.double(), sum(map(entropy_of, oracles)), atol=1e-5, rtol=1e-4)
    assert [len(action[:, i].unique()) for i in range(3)] == list(sizes)
    mode = torch.zeros_like(action)
    of_mode = head.mode(output, mode, mask)
    assert torch.equal(mode, torch.stack([one.probs.argmax(-1) for one in oracles], dim=1))
    assert (of_mode >= log_prob - 1e-5).all()


def gaussian(*shape: int, **settings: Any) -> GaussianHead:
    return GaussianHead(box(*shape, low=-2.0, high=6.0), ActorCriticSettings(**settings))


def test_a_squashed_gaussian_is_torchs_transformed_distribution() -> None:
    head, output = gaussian(3, squash_actions=True, initial_log_std=-0.5), random(ROWS, 3)
    action = torch.zeros(ROWS, 3)
    with torch.no_grad():
        sampled = head.sample(output, random(ROWS, 3, seed=1), action, None)
        log_prob, entropy = head.evaluate(output, action, None)
    plain = Normal(output.double(), torch.full((3,), -0.5).exp().double())
    # The action that is stored is the one before tanh; the density is that of what comes after it, in (-1, 1).
    expected = Independent(TransformedDistribution(plain, [TanhTransform()]), 1).log_prob(torch.tanh(action.double()))
    torch.testing.assert_close(log_prob.double(), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(sampled, log_prob, atol=1e-4, rtol=0)
    mean, std = (numbers.numpy() for numbers in (plain.loc, plain.scale))
    np.testing.assert_allclose(entropy, entropy_of_tanh(mean, np.log(std)).sum(-1), atol=2e-5, rtol=0)


def entropy_of_tanh(mean: Any, log_std: Any) -> np.ndarray:
    """Integrates -p log p of y = tanh(u), u ~ N(mean, std^2), over u in steps that resolve the narrower of the two."""
    std = np.exp(np.asarray(log_std, np.float64))[..., None]
    noise = np.linspace(-12.0, 12.0, 20001)
    u = np.asarray(mean, np.float64)[..., None] + std * noise
    density = np.exp(-0.5 * noise**2) / (std * np.sqrt(2.0 * np.pi))
    log_slope = -2.0 * (np.logaddexp(u, -u) - np.log(2.0))  # of 1 / cosh(u)^2
    step = std[..., 0] * (noise[1] - noise[0])
    return -(density * (-0.5 * noise**2 - np.log(std * np.sqrt(2.0 * np.pi)) - log_slope)).sum(-1) * step


SPREADS = np.stack(np.meshgrid([-6.0, -2.0, -0.7, 0.0, 0.3, 1.0, 4.0, 30.0], [-5.0, -2.0, -0.5, 0.0, 0.4, 1.0, 2.0]))


@pytest.mark.parametrize("is_by_component", [False, True])
def test_the_entropy_of_a_squashed_gaussian_and_its_slopes_are_those_of_numerical_integration(
    is_by_component: bool,
) -> None:
    means, log_stds = SPREADS.reshape(2, -1)
    head = gaussian(1, squash_actions=True, state_dependent_std=True)
    output = torch.tensor(np.stack((means, log_stds), axis=1), dtype=torch.float32, requires_grad=True)
    action = torch.full((len(means), 1), 0.9)  # whatever was done: the entropy is the distribution's
    judge = head.evaluate_components if is_by_component else head.evaluate
    entropy = judge(output, action, None)[1].reshape(-1)
    entropy.sum().backward()
    np.testing.assert_allclose(entropy.detach(), entropy_of_tanh(means, log_stds), atol=1e-5, rtol=1e-6)
    d = 1e-4
    by_mean = (entropy_of_tanh(means + d, log_stds) - entropy_of_tanh(means - d, log_stds)) / (2 * d)
    by_log_std = (entropy_of_tanh(means, log_stds + d) - entropy_of_tanh(means, log_stds - d)) / (2 * d)
    assert output.grad is not None
    np.testing.assert_allclose(output.grad[:, 0], by_mean, atol=1e-5, rtol=0)
    np.testing.assert_allclose(output.grad[:, 1], by_log_std, atol=2e-5, rtol=0)
    # At mean 0 and log std 0 the entropy falls with the deviation, though the Gaussian's own rises by 1.
    [standard] = np.flatnonzero((means == 0.0) & (log_stds == 0.0))
    assert float(output.grad[standard, 1]) == pytest.approx(-0.21, abs=0.005)


def test_kernels_have_the_same_entropy_of_squashing() -> None:
    for mean, log_std in SPREADS.reshape(2, -1).T:
        found = mean_log_slope(np.float32(mean), np.float32(np.exp(2.0 * log_std)))
        d, gaussian_part = 1e-4, 0.5 * np.log(2.0 * np.pi * np.e)
        by_mean = (entropy_of_tanh(mean + d, log_std) - entropy_of_tanh(mean - d, log_std)) / (2 * d)
        by_log_std = (entropy_of_tanh(mean, log_std + d) - entropy_of_tanh(mean, log_std - d)) / (2 * d)
        expected = entropy_of_tanh(mean, log_std) - log_std - gaussian_part, by_mean, by_log_std - 1.0
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-6, err_msg=f"mean {mean}, log std {log_std}")
    assert np.isnan(mean_log_slope(np.float32(np.nan), np.float32(1.0))).all()


def test_squashed_actions_fill_their_bounds_and_never_leave_them() -> None:
    head = gaussian(1, squash_actions=True)
    given = head.env_action(torch.tensor([[-50.0], [0.0], [50.0], [0.5]]))
    # -2 + (tanh(u) + 1) / 2 * 8: tanh(0.5) = 0.46212 gives 3.84847.
    torch.testing.assert_close(given.ravel(), torch.tensor([-2.0, 2.0, 6.0, 3.84847]), atol=1e-4, rtol=0)


def test_a_squashed_log_probability_stays_finite_far_out() -> None:
    head = gaussian(1, squash_actions=True)
    with torch.no_grad():
        log_prob, _ = head.evaluate(torch.tensor([[40.0], [-40.0]]), torch.tensor([[40.0], [-40.0]]), None)
    # -log sqrt(2 pi) - 2 (log 2 - 40) = -0.9189 + 78.6137
    torch.testing.assert_close(log_prob, torch.full((2,), 77.6948), atol=1e-3, rtol=0)


def test_a_state_dependent_deviation_is_the_second_half_of_the_output() -> None:
    head = gaussian(2, state_dependent_std=True, initial_log_std=-0.25)
    output, action = 0.5 * random(ROWS, 4), torch.zeros(ROWS, 2)
    assert head.output_size == 4
    assert not list(head.parameters())
    sampled = head.sample(output, random(ROWS, 2, seed=1), action, None)
    log_prob, entropy = head.evaluate(output, action, None)
    expected = Independent(Normal(output[:, :2], (output[:, 2:] - 0.25).exp()), 1)
    torch.testing.assert_close(log_prob, expected.log_prob(action), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(sampled, log_prob, atol=1e-4, rtol=0)
    torch.testing.assert_close(entropy, expected.entropy(), atol=1e-5, rtol=1e-5)


def test_a_state_dependent_deviation_is_kept_within_reason() -> None:
    head, action = gaussian(1, state_dependent_std=True), torch.zeros(2, 1)
    _, entropy = head.evaluate(torch.tensor([[0.0, 100.0], [0.0, -100.0]]), action, None)
    # log std between -5 and 2, plus 0.5 log(2 pi e) = 1.41894.
    torch.testing.assert_close(entropy, torch.tensor([3.41894, -3.58106]), atol=1e-4, rtol=0)


HYBRID = DictSpec((("go", discrete(3)), ("push", box(2)), ("turn", TupleSpec((multi_discrete(2, 4), box(1))))))


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_hybrid_action_is_the_sum_of_its_parts(is_masked: bool) -> None:
    head = JointHead(HYBRID, ActorCriticSettings(initial_log_std=0.3))
    # Uniforms come first, then normals: 1 for go, 2 for turn.0; 2 for push, 1 for turn.1.
    assert head.noise == NoiseSpec(num_uniform=3, num_normal=3)
    assert head.output_size == 3 + 2 + 6 + 1
    output, mask = random(ROWS, 12), some_mask(ROWS, (3, 2, 4)) if is_masked else None
    noise = torch.cat((uniform(ROWS, 3), random(ROWS, 3, seed=7)), dim=1)
    step = {
        "action.go": torch.zeros(ROWS, dtype=torch.int64),
        "action.push": torch.zeros(ROWS, 2),
        "action.turn.0": torch.zeros(ROWS, 2, dtype=torch.int64),
        "action.turn.1": torch.zeros(ROWS, 1),
    }
    with torch.no_grad():
        sampled = head.sample(output, noise, step, mask)
        log_prob, entropy = head.evaluate(output, step, mask)
    go, push, left, right, last = output.split((3, 2, 2, 4, 1), 1)
    masks = [None] * 3 if mask is None else mask.split((3, 2, 4), 1)
    choices = [oracle(part, allowed) for part, allowed in zip((go, left, right), masks, strict=True)]
    numbers = [Independent(Normal(mean, torch.tensor(0.3).exp()), 1) for mean in (push, last)]
    chosen = (step["action.go"], step["action.turn.0"][:, 0], step["action.turn.0"][:, 1])
    expected = sum(one.log_prob(action) for one, action in zip(choices, chosen, strict=True))
    expected = expected + numbers[0].log_prob(step["action.push"]) + numbers[1].log_prob(step["action.turn.1"])
    torch.testing.assert_close(log_prob.double(), expected.double(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(sampled, log_prob, atol=1e-4, rtol=0)
    total = sum(map(entropy_of, choices)) + sum(one.entropy() for one in numbers)
    torch.testing.assert_close(entropy.double(), total.double(), atol=1e-4, rtol=1e-4)
    # Each part was drawn with its own noise.
    torch.testing.assert_close(step["action.push"], push + torch.tensor(0.3).exp() * noise[:, 3:5])
    torch.testing.assert_close(step["action.turn.1"], last + torch.tensor(0.3).exp() * noise[:, 5:])
    if mask is not None:
        assert all(allowed[torch.arange(ROWS), a].all() for allowed, a in zip(masks, chosen, strict=True))
    with torch.no_grad():
        of_mode = head.mode(output, step, mask)
        log_prob, _ = head.evaluate(output, step, mask)
    assert torch.equal(step["action.push"], push)
    torch.testing.assert_close(of_mode, log_prob, atol=1e-4, rtol=0)


def test_kernels_have_the_mixture_of_the_heads() -> None:
    assert kernel_heads.LOGISTIC_WEIGHTS == heads.LOGISTIC_WEIGHTS
    assert kernel_heads.LOGISTIC_STDS == heads.LOGISTIC_STDS
