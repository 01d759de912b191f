"""The store of fragments: how old they may be, how often they are used, and that none is lost without being counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from quintain import Trainer
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fragments import FragmentBlock
from quintain.errors import SettingsError
from quintain.rollouts.fragment_store import FragmentBuffer
from quintain.rollouts.settings import FragmentSettings
from tests.declared import declared
from tests.scripted import Episode, scripted_env

T = 2
SPEC = scripted_env([[Episode(9, "terminated")]], "lanes").spec


def make_store(num_blocks: int = 1, seed: int = 0, **settings: Any) -> FragmentBuffer:
    chosen = FragmentSettings(num_steps=T, **settings)
    blocks = [FragmentBlock(SPEC, declared(), num_lanes=chosen.num_new, num_steps=T) for _ in range(num_blocks)]
    return FragmentBuffer(*blocks, settings=chosen, rng=Rng(seed))


def commit(store: FragmentBuffer, versions: Sequence[int], first: int = 0, session: int | None = None) -> None:
    """Fills a block with fragments of lanes from `first` on, whose first steps are of these versions.

    The last step of each is of the newest version. Each episode ends with the fragment.
    """
    store.release()
    block = store.reserve()
    assert isinstance(block, FragmentBlock)
    for column, version in enumerate(versions):
        block.arrays[f.LANE][:, column] = first + column
        block.arrays[f.FRAGMENT][:, column] = 1
        block.arrays[f.POLICY_VERSION][:, column] = [version, max(versions), 0]
        block.arrays[f.SESSION][:, column] = store.session if session is None else session
        block.arrays[f.OBS][:, column] = first + column
        block.arrays[f.TERMINATED][1, column] = block.arrays[f.DONE][1, column] = True
        block.add_final_obs(1, np.array([column]), {f.OBS: np.full((1, 3), -first - column)}, block.policy_state)
    store.commit(block)


def feed(store: FragmentBuffer, versions: Sequence[int], at: int, first: int = 0) -> Any:
    """Commits a block when the learner is at version `at`; returns the batch, or None if there is not enough."""
    commit(store, versions, first)
    return store.take() if store.admit(at) else None


def lanes_of(batch: Any) -> list[int]:
    """Returns which fragments are in a batch, and looks that each is whole."""
    rollout = batch.rollout
    assert rollout.array(f.VALID)[:-1].all()
    for column in range(rollout.num_lanes):
        lane = rollout.array(f.LANE)[0, column]
        assert (rollout.array(f.OBS)[:, column] == lane).all()
        assert (rollout.final.array(f.OBS)[rollout.array(f.FINAL_INDEX)[1, column]] == -lane).all()
    return rollout.array(f.LANE)[0].tolist()


def test_a_fragment_whose_first_step_is_too_old_is_dropped_and_the_batch_waits_for_others() -> None:
    store = make_store(num_blocks=2, num_fragments=4, max_staleness=2)
    # At version 8 the oldest may be of version 6.
    assert feed(store, [7, 6, 5, 2], at=8) is None
    assert (store.num_dropped["stale"], store.num_waiting) == (2 * T, 2 * T)
    batch = feed(store, [8, 8], at=8, first=4)
    assert lanes_of(batch) == [0, 1, 4, 5]
    assert (batch.num_valid, batch.num_new) == (4 * T, 4 * T)
    # Steps of versions (7, 7), (6, 7) and twice (8, 8), at version 8; the oldest first step is of version 6.
    assert batch.metrics["rollout/version_lag"] == pytest.approx((1 + 1 + 2 + 1) / 8)
    assert batch.metrics["rollout/staleness"] == 2.0
    assert batch.metrics["rollout/dropped"] == batch.metrics["fragments/dropped"] == 2 * T
    assert batch.metrics["fragments/dropped_stale"] == 2 * T


def test_one_that_was_fresh_at_its_arrival_may_be_too_old_at_its_use() -> None:
    store = make_store(num_blocks=2, num_fragments=4, max_staleness=2)
    assert feed(store, [3, 3, 3], at=4) is None
    assert store.num_dropped["stale"] == 0
    assert lanes_of(feed(store, [6, 6, 6, 6], at=6, first=4)) == [4, 5, 6, 7]
    assert store.num_dropped["stale"] == 3 * T


def test_in_turns_none_is_too_old() -> None:
    assert lanes_of(feed(make_store(num_fragments=4), [3, 2, 1, 0], at=99)) == [0, 1, 2, 3]


def test_a_fragment_of_another_session_is_refused_and_counted() -> None:
    store = make_store(num_fragments=2, capacity=4)
    commit(store, [1, 1], session=store.session - 1)
    assert not store.admit(1)
    assert store.num_dropped == {"stale": 0, "capacity": 0, "session": 2 * T}
    assert lanes_of(feed(store, [1, 1], at=1, first=2)) == [2, 3]
    # A resume begins another session: the pool of the checkpoint is its own, and what the last one collects is not.
    assert feed(store, [1], at=1, first=4) is None
    again = make_store(num_fragments=2, capacity=4)
    again.load_state_dict(store.state_dict())
    commit(again, [1], first=5, session=store.session)
    assert not again.admit(1)
    assert lanes_of(feed(again, [1], at=1, first=6)) == [4, 6]
    assert again.num_dropped["session"] == 3 * T


def test_the_oldest_are_dropped_beyond_the_capacity() -> None:
    store = make_store(num_fragments=2, capacity=3)
    store.request(3)
    assert feed(store, [1, 1], at=1) is None
    batch = feed(store, [1, 1], at=1, first=2)
    assert lanes_of(batch) == [1, 2, 3]
    assert batch.metrics["fragments/dropped_capacity"] == T
    with pytest.raises(SettingsError, match=r"a batch of 4 fragments cannot be drawn from a store of 3") as told:
        store.request(4)
    assert told.value.code == "E0254"


def test_a_batch_of_another_size_is_taken_by_request() -> None:
    store = make_store(num_fragments=2, capacity=9)
    store.request(5)
    assert feed(store, [0, 0], at=0) is None
    assert feed(store, [0, 0], at=0, first=2) is None
    drawn = lanes_of(feed(store, [0, 0], at=0, first=4))
    assert len(set(drawn)) == 5
    store.request(1)
    one = feed(store, [0, 0], at=0, first=6)
    left = {0, 1, 2, 3, 4, 5, 6, 7} - set(drawn)
    assert set(lanes_of(one)) < left
    assert one.metrics["fragments/waiting"] == 2 * T


def test_draws_are_without_replacement_by_a_stream_of_their_own() -> None:
    def drawn(seed: int) -> list[list[int]]:
        store = make_store(num_fragments=8, max_reuse=4, seed=seed)
        fed = (feed(store, [0, 0], at=0, first=2 * number) for number in range(40))
        return [lanes_of(batch) for batch in fed if batch is not None]

    first = drawn(0)
    assert first == drawn(0) != drawn(1)
    seen = Counter(lane for batch in first for lane in batch)
    assert max(seen.values()) == 4
    assert all(len(set(batch)) == 8 for batch in first)
    # Three blocks wait for the fourth; then there are always enough, and few fragments leave unused.
    assert len(first) == 37
    # What was collected 12 batches ago was used up. It is not always the newest or the oldest that are drawn.
    assert all(seen[lane] == 4 for lane in range(40))
    assert len({lane - 2 * number for number, batch in enumerate(first) for lane in batch}) > 16


def test_a_fragment_is_learned_from_at_most_so_often_and_every_step_is_somewhere() -> None:
    store = make_store(num_blocks=2, num_fragments=4, max_reuse=2, max_staleness=3)
    seen: Counter[int] = Counter()
    learned = 0
    for number in range(40):
        # Some begin long ago: they are too old at their arrival, or soon.
        batch = feed(store, [number - number % 5, number], at=number, first=2 * number)
        if batch is not None:
            seen.update(lanes_of(batch))
            learned += batch.num_new
            assert batch.num_episodes * T == batch.num_new
            assert 1.0 <= batch.metrics["rollout/reuse"] <= 2.0
            assert batch.metrics["rollout/staleness"] <= 3
        assert 2 * (number + 1) * T == learned + store.num_waiting + sum(store.num_dropped.values())
    assert max(seen.values()) == 2
    assert learned == len(seen) * T
    assert store.num_dropped["stale"] > 0


def test_a_resume_has_the_same_batches() -> None:
    def fed(*, is_resumed: bool) -> list[list[int]]:
        store = make_store(num_fragments=4, max_reuse=2)
        batches = []
        for number in range(12):
            batch = feed(store, [number, number], at=number, first=2 * number)
            if batch is not None:
                batch.rollout.arrays[f.ADVANTAGE][:-1] = number + 1
            if is_resumed:
                saved = store.state_dict()
                store = make_store(num_fragments=4, max_reuse=2)
                store.load_state_dict(saved)
            if is_resumed and batch is not None:
                again = store.take()
                assert (again.num_new, again.num_episodes) == (batch.num_new, batch.num_episodes)
                assert again.metrics == batch.metrics
                assert (again.rollout.arrays[f.ADVANTAGE][:-1] == number + 1).all(), "it had been estimated"
                batch = again
            batches.append([] if batch is None else lanes_of(batch))
            store.mark_consumed()
        return batches

    assert fed(is_resumed=False) == fed(is_resumed=True)


def test_other_lanes_begin_with_the_counts_of_those_before() -> None:
    store = make_store(num_blocks=2, num_fragments=4, max_staleness=2)
    assert feed(store, [7, 6, 5, 2], at=8) is None
    store.release()
    commit(store, [8, 8, 8, 8], first=4)
    other = make_store(num_blocks=2, num_fragments=2, max_staleness=2)
    other.begin_anew(store.state_dict())
    # Two were too old; two waited in the pool, and a block of four was full.
    assert other.num_dropped == {"stale": 2 * T, "capacity": 0, "session": 6 * T}
    # Of two ranks that become one; then of a batch that was drawn, and that was learned from or not.
    assert store.admit(8)
    drawn = store.take()
    assert drawn.num_new == 4 * T
    other.begin_anew(store.state_dict())
    assert other.num_dropped == {"stale": 4 * T, "capacity": 0, "session": 6 * T + 2 * T + 4 * T}
    other.begin_anew(store.state_dict(), is_learned=True)
    assert other.num_dropped == {"stale": 6 * T, "capacity": 0, "session": 12 * T + 2 * T}


@pytest.mark.parametrize("placement", ["local", "threads"])
def test_a_run_with_reuse_counts_each_step_once(placement: str) -> None:
    rollout = {"type": "fragments", "num_steps": 8, "num_fragments": 8, "max_reuse": 2, "max_staleness": 3}
    trainer = Trainer(
        "ppo", "CartPole-v1", rollout=rollout, num_lanes=4, batch_size=32, num_epochs=1, writers=[], events=[],
        total_timesteps=512, placement=placement,
    )  # fmt: skip
    trainer.train()
    # 4 new fragments of 8 steps in each update.
    assert trainer.progress.env_steps >= 512
    assert trainer.progress.updates == pytest.approx(trainer.progress.env_steps / 32, abs=3)
    trainer.close()
