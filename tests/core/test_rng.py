"""Random numbers are functions of seed, stream, lane and step, and of nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from quintain.core.rng import Rng, philox4x32


def words(*values: int) -> tuple:
    return tuple(np.array([value], np.uint64) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # Known answers of Random123 (Salmon et al. 2011) for philox4x32 with ten rounds.
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: tuple, key: tuple, expected: tuple) -> None:
    result = philox4x32(words(*counter), key[0] | key[1] << 32)
    assert tuple(int(word[0]) for word in result) == expected


def philox_in_plain_integers(counter: list[int], key: int) -> list[int]:
    """The same generator again, word by word as the paper writes it, with Python's integers."""
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            second >> 32 ^ counter[1] ^ low,
            second & 0xFFFFFFFF,
            first >> 32 ^ counter[3] ^ high,
            first & 0xFFFFFFFF,
        ]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return counter


def test_a_uniform_is_the_top_24_bits_of_the_word_of_its_step_lane_and_place() -> None:
    rng, out = Rng(3), np.zeros((2, 3, 6), np.float32)
    first_step = 2**32 - 1  # the second step needs the counter's second word
    rng.fill_uniform(out, "action", first_step, first_lane=5)
    for t in range(2):
        for lane in range(3):
            for place in range(6):
                step = first_step + t
                block = philox_in_plain_integers(
                    [step & 0xFFFFFFFF, step >> 32, 5 + lane, place // 4], rng.key("action")
                )
                assert out[t, lane, place] == (block[place % 4] >> 8) / 2**24


@pytest.mark.parametrize("fill", [Rng.fill_uniform, Rng.fill_normal])
def test_a_lanes_numbers_depend_neither_on_other_lanes_nor_on_where_a_block_starts(fill) -> None:
    rng = Rng(11)
    whole, part = np.zeros((10, 8, 3), np.float32), np.zeros((4, 2, 3), np.float32)
    fill(rng, whole, "action", 100)
    fill(rng, part, "action", 103, first_lane=5)
    np.testing.assert_array_equal(part, whole[3:7, 5:7])


@pytest.mark.parametrize("fill", [Rng.fill_uniform, Rng.fill_normal])
def test_a_large_block_has_the_numbers_of_its_steps(fill) -> None:
    # More than are drawn at once, in steps that do not divide it.
    block, alone = np.empty((7, 3000, 3), np.float32), np.empty((1, 3000, 3), np.float32)
    fill(Rng(3), block, "acting", 40)
    for step in range(7):
        fill(Rng(3), alone, "acting", 40 + step)
        assert np.array_equal(block[step], alone[0])


def test_uniforms_fill_the_half_open_interval_evenly() -> None:
    out = np.zeros((1000, 10, 10), np.float32)
    Rng(1).fill_uniform(out, "action", 0)
    assert out.min() >= 0.0
    assert out.max() < 1.0
    counts, _ = np.histogram(out, bins=10, range=(0, 1))
    # 100 000 draws, 10 000 expected per bin, deviation sqrt(100000 * 0.1 * 0.9) = 95: five deviations are 475.
    assert np.abs(counts - 10_000).max() < 475


@pytest.mark.parametrize("numbers", [1, 2, 5])
def test_normals_have_the_moments_of_a_standard_normal(numbers: int) -> None:
    out = np.zeros((2000, 20, numbers), np.float32)
    Rng(2).fill_normal(out, "action", 0)
    x = out.astype(np.float64).reshape(-1, numbers)
    n = len(x)
    # Five deviations of the estimates for n = 40 000 independent draws: 1, sqrt(2), sqrt(15), sqrt(96) over sqrt(n).
    for power, expected, deviation in ((1, 0.0, 1.0), (2, 1.0, 2**0.5), (3, 0.0, 15**0.5), (4, 3.0, 96**0.5)):
        assert np.abs((x**power).mean(axis=0) - expected).max() < 5 * deviation / n**0.5
    if numbers > 1:
        correlation = np.corrcoef(x.T)[~np.eye(numbers, dtype=bool)]
        assert np.abs(correlation).max() < 5 / n**0.5


def test_streams_children_seeds_and_counters_all_give_other_keys() -> None:
    rng = Rng(0)
    keys = [
        rng.key("a"),
        rng.key("b"),
        rng.key("a", 0),
        rng.key("a", 1),
        rng.key("a", 1, 2),
        rng.key("a", 12),
        rng.child("a").key("a"),
        rng.child("b").key("a"),
        rng.child("a").child("b").key("a"),
        Rng(1).key("a"),
    ]
    assert len(set(keys)) == len(keys)


def test_streams_are_uncorrelated() -> None:
    drawn = np.zeros((4, 5000, 1, 1), np.float32)
    for out, rng in zip(drawn, (Rng(0), Rng(1), Rng(0).child("x"), Rng(0).child("y")), strict=True):
        rng.fill_uniform(out, "action", 0)
    correlation = np.corrcoef(drawn.reshape(4, -1))[~np.eye(4, dtype=bool)]
    assert np.abs(correlation).max() < 5 / 5000**0.5


def test_the_same_request_gives_the_same_numbers() -> None:
    first, second = Rng(5).generator("minibatches", 3, 1), Rng(5).generator("minibatches", 3, 1)
    np.testing.assert_array_equal(first.permutation(50), second.permutation(50))
    ones, others = (torch.rand(5, generator=Rng(5).torch_generator("init")) for _ in range(2))
    assert torch.equal(ones, others)
    assert not torch.equal(ones, torch.rand(5, generator=Rng(6).torch_generator("init")))


def test_seeds_fit_every_library() -> None:
    seeds = [Rng(seed).seed_for("reset", lane) for seed in range(20) for lane in range(20)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len(set(seeds)) == len(seeds)


def test_no_global_generator_is_touched() -> None:
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    rng, out = Rng(9), np.zeros((4, 2, 3), np.float32)
    rng.fill_uniform(out, "a", 0)
    rng.fill_normal(out, "a", 0)
    rng.generator("a").random(5)
    torch.rand(5, generator=rng.torch_generator("a"))
    assert random.getstate() == before[0]
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])


def test_a_kept_rng_is_a_constant() -> None:
    rng = Rng(1)
    with pytest.raises(AttributeError):
        rng.seed = 2  # type: ignore[misc]


def test_many_seeds_at_once_are_those_that_are_asked_for_one_by_one() -> None:
    rng = Rng(7).child("100% env")
    counters = [(lane, episode, 0) for lane in range(5) for episode in (0, 1, 10**12)]
    assert rng.seeds_for("reset", counters) == [rng.seed_for("reset", *each) for each in counters]
    assert rng.seeds_for("reset", []) == []
