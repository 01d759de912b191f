"""The normaliser's statistics are those of all batches together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quintain.policies.normalizer import SETTLED_ROWS, Move, ObsNormalizer


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


def moved(first: np.ndarray, second: np.ndarray, clip: float = 10.0) -> tuple[Move, ObsNormalizer, ObsNormalizer]:
    """Returns the move by the second batch, and the normaliser before and after it."""
    before, after = (ObsNormalizer(first.shape[1], clip) for _ in range(2))
    before.update(first)
    after.update(first)
    move = after.update(second)
    assert move is not None
    return move, before, after


def test_a_move_says_how_old_numbers_follow_from_new_ones() -> None:
    # n rows of 0 and 4: mean 2, deviation 2. 3 n rows of 4 and 8 more: mean (2 + 3 * 6) / 4 = 5, and variance
    # ((4 + 9) + 3 * (4 + 1)) / 4 = 7: that of each part about its own mean, and that mean's distance from 5 squared.
    first, second = (np.tile([[low], [low + 4.0]], (n * SETTLED_ROWS // 2, 1)) for low, n in ((0.0, 1), (4.0, 3)))
    move, _, _ = moved(first, second)
    # (x - 2) / 2 = (x - 5) / sqrt(7) * sqrt(7) / 2 + 3 / 2.
    np.testing.assert_allclose(move.factor.numpy(), [np.sqrt(7.0) / 2.0], rtol=1e-6)
    np.testing.assert_allclose(move.offset.numpy(), [1.5], rtol=1e-6)


def test_the_first_rows_make_no_move_to_fold() -> None:
    normalizer = ObsNormalizer(3, clip=10.0)
    early, next_row, after = batches(SETTLED_ROWS - 1, 1, 1)
    assert normalizer.update(early) is None
    assert normalizer.update(next_row) is None
    assert normalizer.update(after) is not None
    assert normalizer.update(np.zeros((0, 3), np.float32)) is None


def test_a_number_that_never_varied_keeps_its_weights_and_what_they_gave() -> None:
    first, second = np.full((SETTLED_ROWS, 1), 3.0), np.full((SETTLED_ROWS, 1), 5.0)
    move, before, after = moved(first, second)
    # Its old scale is 1 / sqrt(1e-8) = 10,000. Folded by that, weights would be 10,000 times what they were.
    assert move.factor.tolist() == [1.0]
    # The new mean is 4 and the new deviation 1: where it stood, 3, the new number is -1 and the old one was 0.
    np.testing.assert_allclose(move.offset.numpy(), [1.0], rtol=1e-6)
    stood = torch.tensor([[3.0]])
    np.testing.assert_allclose((after(stood) * move.factor + move.offset).numpy(), before(stood).numpy(), atol=1e-6)


def test_clipped_numbers_follow_the_line_that_fits_all_rows_best() -> None:
    draw = np.random.default_rng(1)
    first = draw.uniform(-1.0, 1.0, (2 * SETTLED_ROWS, 2))
    # The second number stays within the clip; the first grows to forty times its deviation.
    second = draw.uniform(-1.0, 1.0, (SETTLED_ROWS // 2, 2)) * (25.0, 1.5)
    move, before, after = moved(first, second)
    rows = torch.from_numpy(np.concatenate((first, second))).float()
    old, new = before(rows).double().numpy(), after(rows).double().numpy()
    assert (np.abs(old) == 10.0).any(axis=0).tolist() == [True, False]
    slope, intercept = np.polyfit(new[:, 0], old[:, 0], 1)
    straight = (before.scale / after.scale).numpy()
    assert 1.0 < slope < 0.5 * straight[0], "by the line of numbers that are not clipped, weights would grow far more"
    np.testing.assert_allclose(move.factor.numpy(), [slope, straight[1]], rtol=1e-5)
    exact = (after.shift - before.shift).double().numpy() * before.scale.double().numpy()
    np.testing.assert_allclose(move.offset.numpy(), [intercept, exact[1]], atol=1e-5)


def test_rows_beyond_the_clip_on_both_scales_do_not_turn_the_line() -> None:
    first = np.random.default_rng(2).normal(size=(SETTLED_ROWS, 1))
    # A few outliers, far beyond the clip before and after: earlier rows outweigh them.
    move, before, after = moved(first, np.full((5, 1), 30.0))
    straight = (before.scale / after.scale).item()
    assert 1.0 < move.factor.item() < straight < 1.3
    assert move.factor.item() == pytest.approx(straight, rel=0.1)
