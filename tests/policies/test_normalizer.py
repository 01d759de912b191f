"""The normaliser's statistics are those of all batches together."""

from __future__ import annotations

import numpy as np
import torch

from quintain.policies.normalizer import ObsNormalizer


def batches(*sizes: int) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.normal((5.0, -300.0, 0.01), (2.0, 50.0, 0.001), (size, 3)).astype(np.float32) for size in sizes]


def fed(*parts: np.ndarray) -> ObsNormalizer:
    normalizer = ObsNormalizer(3, clip=10.0)
    for part in parts:
        normalizer.update(part)
    return normalizer


def test_mean_and_variance_are_those_of_the_joined_batches() -> None:
    parts = batches(1, 7, 1000, 64)
    together = np.concatenate(parts).astype(np.float64)
    normalizer = fed(*parts)
    assert normalizer.count.item() == 1072
    np.testing.assert_allclose(normalizer.mean.numpy(), together.mean(axis=0), rtol=1e-12)
    variance = (normalizer.sum_of_squares / normalizer.count).numpy()
    np.testing.assert_allclose(variance, together.var(axis=0), rtol=1e-10)


def test_observations_are_shifted_scaled_and_clipped() -> None:
    part = batches(500)[0]
    normalizer = fed(part)
    mean, deviation = part.astype(np.float64).mean(axis=0), np.sqrt(part.astype(np.float64).var(axis=0) + 1e-8)
    expected = ((part - mean) / deviation).clip(-10, 10)
    np.testing.assert_allclose(normalizer(torch.from_numpy(part)).numpy(), expected, atol=2e-4)
    far = torch.tensor([[1e6, -1e9, 1e3]])
    assert normalizer(far).tolist() == [[10.0, -10.0, 10.0]]


def test_without_data_nothing_changes() -> None:
    normalizer, obs = fed(np.zeros((0, 3), np.float32)), torch.tensor([[1.0, -2.0, 3.0]])
    assert torch.equal(normalizer(obs), obs)
    assert normalizer.count.item() == 0


def test_a_constant_observation_does_not_divide_by_zero() -> None:
    normalizer = fed(np.full((10, 3), 4.0, np.float32))
    assert normalizer(torch.full((1, 3), 4.0)).tolist() == [[0.0, 0.0, 0.0]]
    assert torch.isfinite(normalizer.scale).all()


def test_it_comes_back_whole_and_continues_bitwise() -> None:
    first, second = batches(100, 50)
    one, restored = fed(first), ObsNormalizer(3, clip=10.0)
    restored.load_state_dict(one.state_dict())
    one.update(second)
    restored.update(second)
    for name, value in one.state_dict().items():
        assert torch.equal(restored.state_dict()[name], value)
