"""One block: reserved, filled, taken, released, and nobody can run ahead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.rollouts.store import RolloutBuffer
from tests.declared import declared

SPEC = BehaviorSpec(obs=box(1), action=discrete(2))


def block() -> Rollout:
    rollout = Rollout(SPEC, num_lanes=2, num_steps=3, fields=declared())
    rollout.begin(1, version=0)
    return rollout


def test_the_block_goes_round_once_per_update() -> None:
    store = RolloutBuffer(block())
    assert not store.ready()
    lent = store.reserve()
    assert lent is store.block
    assert store.reserve() is None  # lent already
    store.commit(lent)
    assert store.ready()
    assert store.reserve() is None  # nobody acts ahead of the learner
    assert store.take().rollout is lent
    assert store.ready()  # taking does not free it
    store.release()
    assert not store.ready()
    assert store.reserve() is lent


def test_releasing_is_idempotent_and_leaves_a_lent_block_alone() -> None:
    store = RolloutBuffer(block())
    store.release()
    lent = store.reserve()
    store.release()
    assert store.reserve() is None
    store.commit(lent)
    assert store.ready()


def test_only_the_reserved_block_can_be_committed_and_only_once() -> None:
    store = RolloutBuffer(block())
    with pytest.raises(ValueError, match="reserved"):
        store.commit(store.block)
    lent = store.reserve()
    with pytest.raises(ValueError, match="reserved"):
        store.commit(block())
    store.commit(lent)
    with pytest.raises(ValueError, match="once"):
        store.commit(lent)


def filled(store: RolloutBuffer) -> Rollout:
    lent = store.reserve()
    assert lent is not None
    lent.storage[f.REWARD].copy_(torch.from_numpy(np.random.default_rng(0).random((4, 2))))
    lent.begin(5, version=3)
    lent.storage[f.REWARD].fill_(2.0)
    return lent


def test_a_half_filled_block_comes_back_open() -> None:
    store, restored = RolloutBuffer(block()), RolloutBuffer(block())
    filled(store)
    restored.load_state_dict(store.state_dict())
    assert not restored.ready()
    lent = restored.reserve()
    assert lent is restored.block
    assert (lent.storage[f.REWARD] == 2).all()
    assert lent.sequence == 5
    restored.commit(lent)


def test_a_committed_block_comes_back_ready() -> None:
    store, restored = RolloutBuffer(block()), RolloutBuffer(block())
    store.commit(filled(store))
    restored.load_state_dict(store.state_dict())
    assert restored.ready()
    assert restored.reserve() is None
    assert (restored.take().rollout.storage[f.REWARD] == 2).all()


def test_a_free_block_is_saved_without_its_contents() -> None:
    store, restored = RolloutBuffer(block()), RolloutBuffer(block())
    store.commit(filled(store))
    store.take()
    store.release()
    state = store.state_dict()
    assert [saved["block"] for saved in state["blocks"].values()] == [None]
    restored.load_state_dict(state)
    assert restored.reserve() is restored.block


def two_blocks() -> RolloutBuffer:
    return RolloutBuffer(block(), block())


def begun(store: RolloutBuffer) -> Rollout:
    lent = store.reserve()
    assert lent is not None
    lent.begin(lent.sequence + 1, version=0)
    return lent


def test_with_two_blocks_one_can_be_filled_while_the_other_is_learned_from() -> None:
    store = two_blocks()
    first, second = begun(store), begun(store)
    assert first is not second
    assert store.reserve() is None
    store.commit(first)
    assert store.take().rollout is first
    store.commit(second)
    assert store.reserve() is None  # the learner has the first, and the second waits
    assert store.take().rollout is first  # until it is released
    store.release()
    assert begun(store) is first
    assert store.take().rollout is second
    assert (second.sequence, first.sequence) == (2, 3)


def test_blocks_are_numbered_in_the_order_in_which_they_are_lent() -> None:
    store = two_blocks()
    numbers = []
    for _ in range(5):
        lent = begun(store)
        numbers.append(lent.sequence)
        store.commit(lent)
        store.take()
        store.release()
    assert numbers == [1, 2, 3, 4, 5]


def test_a_half_filled_block_comes_before_one_that_is_not_begun_after_a_resume() -> None:
    store, restored = two_blocks(), two_blocks()
    first, second = begun(store), begun(store)
    store.commit(first)
    store.take()
    store.release()
    again = store.reserve()  # the first block, as the third rollout, which is not begun
    assert again is first
    restored.load_state_dict(store.state_dict())
    half, fresh = restored.reserve(), restored.reserve()
    assert half is not None
    assert fresh is not None
    assert half.sequence == second.sequence == 2
    assert fresh is restored.shelves[0].block
    assert restored.reserve() is None


def test_the_block_that_was_taken_is_taken_again_after_a_resume_though_another_is_full() -> None:
    store, restored = two_blocks(), two_blocks()
    first, second = begun(store), begun(store)
    store.commit(first)
    store.take()
    store.commit(second)
    restored.load_state_dict(store.state_dict())
    assert restored.take().rollout.sequence == first.sequence == 1
    restored.release()
    assert restored.take().rollout.sequence == 2
