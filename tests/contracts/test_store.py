"""What every rollout store promises: no block is lent twice, nothing is ready early, and its state continues."""

from __future__ import annotations

import pytest
import torch

from quintain.core import registry
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.rollouts.settings import BlockSettings, ReplaySettings
from quintain.rollouts.store import RolloutStore
from tests.declared import declared

# Blocks of trajectories are filled, and batches of fragments made, in other ways: tests/rollouts.
NAMES = [
    name for name in registry.names("rollout") if "trajector" not in name and name not in ("fragments", "lockstep")
]
pytestmark = pytest.mark.parametrize("name", NAMES)


def make(name: str) -> RolloutStore:
    spec = BehaviorSpec(obs=box(2), action=discrete(2))
    block = Rollout(spec, num_lanes=2, num_steps=3, fields=declared())
    registration = registry.get("rollout", name)
    settings = ReplaySettings(buffer_size=100) if registration.settings_class is ReplaySettings else BlockSettings()
    store: RolloutStore = registration.load()(block, settings=settings)
    return store


def reserved(store: RolloutStore) -> Rollout:
    block = store.reserve()
    assert block is not None
    return block


def test_a_cycle_of_reserving_committing_taking_and_releasing(name: str) -> None:
    store = make(name)
    assert not store.ready()
    block = reserved(store)
    block.begin(1, version=0)
    assert not store.ready()
    store.commit(block)
    assert store.ready()
    assert next(iter(store.take())) is block
    store.release()
    assert not store.ready()
    assert store.reserve() is not None


def test_actors_cannot_run_ahead(name: str) -> None:
    store = make(name)
    block = reserved(store)
    assert store.reserve() is None
    store.commit(block)
    assert store.reserve() is None, "the learner has not consumed it yet"


def test_releasing_is_idempotent_and_frees_no_block_that_is_being_filled(name: str) -> None:
    store = make(name)
    store.release()
    reserved(store)
    store.release()
    assert store.reserve() is None


def test_what_nobody_took_is_not_released(name: str) -> None:
    """A rank may have filled its block when another was asked to stop: the resumed run still learns from it."""
    store, other = make(name), make(name)
    block = reserved(store)
    block.begin(1, version=0)
    store.commit(block)
    store.release()
    assert store.ready()
    other.load_state_dict(store.state_dict())
    other.release()
    assert other.ready()
    other.take()
    other.release()
    assert not other.ready()


def test_a_block_is_committed_once(name: str) -> None:
    store = make(name)
    block = reserved(store)
    store.commit(block)
    with pytest.raises(ValueError, match="reserved"):
        store.commit(block)


def test_a_committed_block_survives_a_resume(name: str) -> None:
    store, other = make(name), make(name)
    block = reserved(store)
    block.begin(7, version=4)
    block.storage[f.OBS][1, 0, 1] = 2.5
    store.commit(block)
    other.load_state_dict(store.state_dict())
    assert other.ready()
    [restored] = other.take()
    assert restored.storage[f.OBS][1, 0, 1] == 2.5
    assert restored.sequence == 7
    assert restored.storage[f.POLICY_VERSION].eq(4).all()
    assert other.reserve() is None


def test_a_block_that_is_half_full_can_be_reserved_again_after_a_resume(name: str) -> None:
    store, other = make(name), make(name)
    block = reserved(store)
    block.begin(3, version=1)
    block.storage[f.REWARD][0, 1] = 9.0
    other.load_state_dict(store.state_dict())
    assert not other.ready()
    assert reserved(other).storage[f.REWARD][0, 1] == 9.0


def test_the_numbering_of_blocks_continues_after_a_resume_between_cycles(name: str) -> None:
    store, other = make(name), make(name)
    for number in (1, 2, 3):
        block = reserved(store)
        assert block.sequence == number - 1
        block.begin(number, version=1)
        store.commit(block)
        store.take()
        store.release()
    other.load_state_dict(store.state_dict())
    assert reserved(other).sequence == 3


def test_what_was_learned_from_is_not_saved_and_not_free_before_its_release(name: str) -> None:
    store, other = make(name), make(name)
    block = reserved(store)
    block.begin(1, version=1)
    block.storage[f.OBS][1, 0, 1] = 2.5
    store.commit(block)
    store.mark_consumed()
    assert _has_tensor(store.state_dict()), "nobody has taken it yet"
    store.take()
    assert _has_tensor(store.state_dict()), "it is being learned from"
    store.mark_consumed()
    assert not _has_tensor(store.state_dict())
    assert block.storage[f.OBS][1, 0, 1] == 2.5, "events may still look at it"
    assert store.reserve() is None
    other.load_state_dict(store.state_dict())
    assert not _has_tensor(other.state_dict())
    for each in (store, other):
        each.release()
        assert not each.ready()
        following = reserved(each)
        assert following.sequence == 1
        assert _has_tensor(each.state_dict()), "the next one is needed again"


def _has_tensor(tree: object) -> bool:
    if isinstance(tree, dict):
        return any(map(_has_tensor, tree.values()))
    return isinstance(tree, torch.Tensor)
