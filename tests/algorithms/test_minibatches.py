"""Minibatches of rows and of whole lanes hold everything that counts, once, with its own fields."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quintain.algorithms import minibatches
from quintain.algorithms.minibatches import MinibatchSampler, num_valid, only_valid, split
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from tests.algorithms.samples import HYBRID, make_policy, rollout_of
from tests.declared import declared

N, T = 4, 6
NAMES = (f.OBS, f.ACTION, f.LOG_PROB, f.ADVANTAGE)


def numbered(**options: object) -> Rollout:
    """Writes 100 * lane + t into the advantage of every step."""
    rollout = rollout_of(make_policy(HYBRID, memory="gru"), num_lanes=N, num_steps=T, **options)
    for lane in range(N):
        rollout[f.ADVANTAGE][lane] = 100.0 * lane + torch.arange(T + 1)
    return rollout


def parts(rollout: Rollout, batch_size: int, *counters: int) -> list[dict[str, torch.Tensor]]:
    drawn = MinibatchSampler(Rng(0)).lanes(Batch(rollout), NAMES, batch_size, *counters)
    return [{name: field.clone() for name, field in part.items()} for part in drawn]


@pytest.mark.parametrize(("batch_size", "sizes"), [(T, [1, 1, 1, 1]), (2 * T, [2, 2]), (3 * T, [3, 1]), (99, [4])])
def test_sequences_cover_every_lane_once_in_time_order(batch_size: int, sizes: list[int]) -> None:
    rollout, lanes = numbered(), []
    for part, size in zip(parts(rollout, batch_size, 0), sizes, strict=True):
        number = part[f.ADVANTAGE].view(T, size)
        for column in range(size):
            lane = int(number[0, column] // 100)
            lanes.append(lane)
            assert number[:, column].tolist() == [100 * lane + t for t in range(T)]
            for name in ("obs.x", "obs.c", "action.go", "action.push", f.LOG_PROB, f.FIRST, f.VALID):
                assert torch.equal(part[name].view(T, size, *part[name].shape[1:])[:, column], rollout[name][lane, :T])
            assert torch.equal(part[f.POLICY_STATE][column], rollout.policy_state[lane])
    assert sorted(lanes) == list(range(N))


def test_lanes_come_in_another_order_each_time() -> None:
    rollout = numbered()

    def order(*counters: int) -> tuple[float, ...]:
        return tuple(float(part[f.ADVANTAGE][0]) for part in parts(rollout, T, *counters))

    assert order(0, 0) == order(0, 0)
    assert len({order(update, epoch) for update in range(3) for epoch in range(3)}) > 4


def test_a_lane_in_which_nothing_counts_is_left_out() -> None:
    rollout = numbered(invalid=tuple((2, t) for t in range(T)))
    lanes = [int(part[f.ADVANTAGE][0] // 100) for part in parts(rollout, T, 0)]
    assert sorted(lanes) == [0, 1, 3]


def test_steps_that_do_not_count_are_carried_and_then_dropped() -> None:
    rollout = numbered(invalid=((1, 2), (3, 5)))
    (part,) = parts(rollout, 99, 0)
    assert len(part[f.ADVANTAGE]) == N * T
    assert num_valid(part) == N * T - 2
    then, now = only_valid(part, {f.VALUE: part[f.ADVANTAGE].clone()})
    assert sorted(then[f.ADVANTAGE].tolist()) == sorted({100 * n + t for n in range(N) for t in range(T)} - {102, 305})
    assert torch.equal(then[f.ADVANTAGE], now[f.VALUE])


@pytest.mark.parametrize("size", [T, 2 * T, 99, 1])
def test_a_minibatch_of_lanes_is_split_into_lanes(size: int) -> None:
    (whole,) = parts(numbered(), 99, 0)
    pieces = list(split(whole, size))
    assert [len(piece[f.POLICY_STATE]) for piece in pieces] == {T: [1] * 4, 2 * T: [2, 2], 99: [4], 1: [1] * 4}[size]
    for name in whole:
        if name == f.POLICY_STATE:
            joined = torch.cat([piece[name] for piece in pieces])
        else:
            joined = torch.cat([piece[name].view(T, -1, *piece[name].shape[1:]) for piece in pieces], 1).flatten(0, 1)
        assert torch.equal(joined, whole[name])


def test_a_minibatch_of_rows_is_split_into_rows() -> None:
    rollout = rollout_of(make_policy())
    (whole,) = MinibatchSampler(Rng(0)).rows(Batch(rollout), NAMES, 99, 0)
    pieces = list(split(whole, 10))
    assert [len(piece[f.LOG_PROB]) for piece in pieces] == [10, 10, 4]
    assert torch.equal(torch.cat([piece[f.OBS] for piece in pieces]), whole[f.OBS])
    assert sum(map(num_valid, pieces)) == 24


@pytest.mark.parametrize("gathered_at_once", [1, 200, 1 << 20])
def test_rows_are_the_permuted_rows_however_many_are_gathered_at_once(
    gathered_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minibatches, "GATHER_BYTES", gathered_at_once)
    rollout = rollout_of(make_policy(), num_lanes=N, num_steps=T, invalid=((1, 2), (3, 5)))
    rollout.storage[f.ADVANTAGE][:-1] = torch.arange(float(N * T)).view(T, N)
    drawn = [
        {name: field.clone() for name, field in part.items()}
        for part in MinibatchSampler(Rng(0)).rows(Batch(rollout), NAMES, 5, 0, 1)
    ]
    # Step 2 of lane 1 and step 5 of lane 3 do not count: rows 9 and 23 in time-major order.
    counting = np.array([row for row in range(N * T) if row not in (9, 23)])
    order = counting[Rng(0).generator("minibatches", 0, 1).permutation(22)]
    assert [part[f.ADVANTAGE].tolist() for part in drawn] == [order[i : i + 5].tolist() for i in range(0, 22, 5)]
    joined = torch.cat([part[f.OBS] for part in drawn])
    assert torch.equal(joined, rollout.flat(f.OBS)[torch.from_numpy(order)])


def test_a_mask_is_drawn_only_where_something_is_forbidden() -> None:
    spec = BehaviorSpec(box(2), discrete(3), mask_size=3)
    rollout = Rollout(spec, num_lanes=N, num_steps=T, fields=declared())
    rollout.begin(0, 0)
    rollout.storage[f.ACTION_MASK].fill_(True)

    def masks() -> list[torch.Tensor | None]:
        drawn = MinibatchSampler(Rng(0)).rows(Batch(rollout), NAMES, 12, 0)
        return [None if f.ACTION_MASK not in part else part[f.ACTION_MASK].clone() for part in drawn]

    assert masks() == [None, None]
    rollout.storage[f.ACTION_MASK][4, 1, 2] = False
    found = torch.cat([mask for mask in masks() if mask is not None])
    assert len(found) == N * T
    assert (~found).sum(dim=0).tolist() == [0, 0, 1]
