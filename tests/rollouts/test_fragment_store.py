"""The store of fragments: how old they may be, how often they are used, and that none is lost without being counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from quintain import Trainer
from quintain.data import fields as f
from quintain.data.fragments import FragmentBlock
from quintain.errors import SettingsError
from quintain.rollouts.fragment_store import FragmentBuffer
from quintain.rollouts.settings import FragmentSettings
from tests.declared import declared
from tests.scripted import Episode, scripted_env

T = 2
SPEC = scripted_env([[Episode(9, "terminated")]], "lanes").spec


def make_store(num_blocks: int = 1, **settings: Any) -> FragmentBuffer:
    chosen = FragmentSettings(num_steps=T, **settings)
    blocks = [FragmentBlock(SPEC, declared(), num_lanes=chosen.num_new, num_steps=T) for _ in range(num_blocks)]
    return FragmentBuffer(*blocks, settings=chosen)


def feed(store: FragmentBuffer, versions: Sequence[int], first: int = 0) -> Any:
    """Fills a block with fragments of lanes from `first` on, whose first steps are of these versions; takes the batch.

    The last step of each is of the newest version. Each episode ends with the fragment.
    """
    store.release()
    block = store.reserve()
    assert isinstance(block, FragmentBlock)
    for column, version in enumerate(versions):
        block.arrays[f.LANE][:, column] = first + column
        block.arrays[f.FRAGMENT][:, column] = 1
        block.arrays[f.POLICY_VERSION][:, column] = [version, max(versions), 0]
        block.arrays[f.OBS][:, column] = first + column
        block.arrays[f.TERMINATED][1, column] = block.arrays[f.DONE][1, column] = True
        block.add_final_obs(1, np.array([column]), {f.OBS: np.full((1, 3), -first - column)}, block.policy_state)
    store.commit(block)
    return store.take()


def lanes_of(batch: Any) -> list[int]:
    """Returns which fragments are in a batch, and looks that each is whole."""
    rollout = batch.rollout
    valid = rollout.array(f.VALID)[:-1].all(axis=0)
    assert (rollout.array(f.VALID)[:-1].any(axis=0) == valid).all()
    columns = np.flatnonzero(valid)
    for column in columns:
        lane = rollout.array(f.LANE)[0, column]
        assert (rollout.array(f.OBS)[:, column] == lane).all()
        assert (rollout.final.array(f.OBS)[rollout.array(f.FINAL_INDEX)[1, column]] == -lane).all()
    return rollout.array(f.LANE)[0, columns].tolist()


def test_a_fragment_whose_first_step_is_too_old_is_left_out_and_counted() -> None:
    store = make_store(num_blocks=2, num_fragments=4, max_staleness=2)
    # Acted for by version 7 last; the learner is one ahead, at 8: the oldest may be of version 6.
    batch = feed(store, [7, 6, 5, 2])
    assert lanes_of(batch) == [0, 1]
    assert (batch.num_valid, batch.num_new) == (2 * T, 2 * T)
    assert batch.metrics["fragments/dropped"] == 2 * T
    # Steps of versions (7, 7) and (6, 7), at version 8.
    assert batch.metrics["rollout/version_lag"] == pytest.approx((1 + 1 + 2 + 1) / 4)


def test_in_turns_none_is_too_old() -> None:
    assert lanes_of(feed(make_store(num_fragments=4), [3, 2, 1, 0])) == [0, 1, 2, 3]


def test_when_all_are_too_old_the_settings_are_named() -> None:
    store = make_store(num_blocks=2, num_fragments=2, max_staleness=1)
    block = store.reserve()
    assert isinstance(block, FragmentBlock)
    block.arrays[f.FRAGMENT][...] = 1
    # Begun by version 1 and finished by version 5; the learner is at 6.
    block.arrays[f.POLICY_VERSION][...] = np.array([1, 5, 0])[:, None]
    store.commit(block)
    with pytest.raises(SettingsError, match=r"max_staleness 1 versions ago: 2 steps of a lane") as told:
        store.take()
    assert told.value.code == "E0254"


def test_a_fragment_is_learned_from_at_most_so_often_and_never_twice_in_a_batch() -> None:
    store = make_store(num_fragments=4, max_reuse=2)
    seen: Counter[int] = Counter()
    sizes, new = [], []
    for number in range(20):
        batch = feed(store, [number, number], first=2 * number)
        lanes = lanes_of(batch)
        assert len(set(lanes)) == len(lanes)
        seen.update(lanes)
        sizes.append(len(lanes))
        new.append(batch.num_new)
        assert batch.num_episodes * T == batch.num_new
    assert sizes == [2, *[4] * 19], "the first batch has new ones alone"
    assert new == [2 * T] * 20
    assert max(seen.values()) == 2
    assert sum(seen.values()) == 2 + 19 * 4
    assert sum(count == 2 for count in seen.values()) == 38, "all but the newest two"


def test_what_is_too_old_is_not_used_again() -> None:
    store = make_store(num_blocks=2, num_fragments=6, max_reuse=3, max_staleness=2)
    assert lanes_of(feed(store, [0, 0])) == [0, 1]
    # At version 2 those of version 0 are two old, which is allowed.
    assert lanes_of(feed(store, [1, 1], first=2)) == [0, 1, 2, 3]
    # At version 3 they are too old; they were learned from, so that nothing is lost.
    batch = feed(store, [2, 2], first=4)
    assert lanes_of(batch) == [2, 3, 4, 5]
    assert batch.metrics["fragments/dropped"] == 0
    assert batch.metrics["rollout/reuse"] == 2.0, "of four fragments two are new"


def test_a_resume_has_the_same_batches() -> None:
    def fed(*, is_resumed: bool) -> list[list[int]]:
        store = make_store(num_fragments=4, max_reuse=2)
        batches = []
        for number in range(5):
            batch = feed(store, [number, number], first=2 * number)
            batch.rollout.arrays[f.ADVANTAGE][:-1] = number + 1
            if is_resumed:
                saved = store.state_dict()
                store = make_store(num_fragments=4, max_reuse=2)
                store.load_state_dict(saved)
                again = store.take()
                assert (again.num_new, again.num_episodes) == (batch.num_new, batch.num_episodes)
                assert (again.rollout.arrays[f.ADVANTAGE][:-1] == number + 1).all(), "it had been estimated"
                batch = again
            batches.append(lanes_of(batch))
            store.mark_consumed()
        return batches

    assert fed(is_resumed=False) == fed(is_resumed=True) == [
        [0, 1], [0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 8, 9]
    ]  # fmt: skip


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
