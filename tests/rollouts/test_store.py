"""One block: reserved, filled, taken, released, and nobody can run ahead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.rollouts.store import RolloutBuffer

SPEC = BehaviorSpec(obs=box(1), action=discrete(2))


def block() -> Rollout:
    rollout = Rollout(SPEC, num_lanes=2, num_steps=3, noise_size=1)
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
