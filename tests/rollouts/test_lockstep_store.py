"""Fragments of lanes that step together: the steps and estimates of one long block, in sequences of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.rollouts.lockstep_store import LockstepBuffer
from quintain.rollouts.settings import LockstepSettings
from tests.declared import declared

LANES, T, PER_LANE = 2, 4, 3


def collected(rollout: dict[str, Any]) -> tuple[Trainer, Any]:
    trainer = Trainer(
        "ppo",
        "CartPole-v1",
        policy={"hidden_sizes": [8], "memory": {"size": 4}},
        num_lanes=LANES,
        rollout=rollout,
        batch_size=rollout["num_steps"],
        normalize_advantage=False,
        max_episode_steps=7,
        events=[],
        writers=[],
    )
    assert trainer._stage_collect()
    assert trainer._stage_estimate()
    return trainer, trainer.batch


def test_its_steps_and_advantages_are_those_of_one_block_and_each_fragment_has_the_state_before_it() -> None:
    _, whole = collected({"type": "block", "num_steps": T * PER_LANE})
    trainer, batch = collected({"type": "lockstep", "num_steps": T, "fragments_per_lane": PER_LANE})
    found = batch.rollout
    assert (found.num_steps, found.num_lanes) == (T, LANES * PER_LANE)
    assert batch.num_new == whole.num_new == LANES * T * PER_LANE
    assert batch.num_episodes == whole.num_episodes > 0
    for name in (f.OBS, f.ACTION, f.REWARD, f.FIRST, f.LOG_PROB, f.VALUE, f.ADVANTAGE, f.RETURN):
        # Fragments lie block after block; each time has its lanes side by side.
        laid = np.concatenate(np.split(found.array(name)[:-1], PER_LANE, axis=1))
        np.testing.assert_allclose(laid, whole.rollout.array(name)[:-1], rtol=0, atol=1e-5, err_msg=name)
    minibatches = [{n: x.clone() for n, x in m.items()} for m in trainer.algorithm.minibatches(batch, T, 0)]
    assert [len(each[f.POLICY_STATE]) for each in minibatches] == [1] * LANES * PER_LANE
    for each in minibatches:
        replayed = trainer.policy.evaluate_actions(each)[f.LOG_PROB]
        torch.testing.assert_close(replayed, each[f.LOG_PROB], rtol=0, atol=1e-5)


def make_store() -> LockstepBuffer:
    spec = BehaviorSpec(obs=box(1), action=discrete(2))
    settings = LockstepSettings(num_steps=T, fragments_per_lane=2)
    return LockstepBuffer(Rollout(spec, num_lanes=LANES, num_steps=T, fields=declared()), settings=settings)


def feed(store: LockstepBuffer, number: int) -> list[float] | None:
    """Collects a block whose rewards are its number; returns the rewards of the batch, None where it is not whole."""
    store.release()
    block = store.reserve()
    assert block is not None
    block.begin(block.sequence + 1, version=0)
    block.storage[f.REWARD].fill_(number)
    store.commit(block)
    if not store.admit(0):
        store.mark_consumed()
        return None
    return rewards(store)


def rewards(store: LockstepBuffer) -> list[float]:
    found: list[float] = store.take().rollout.array(f.REWARD)[0].tolist()
    return found


@pytest.mark.parametrize("stopped_after", [1, 2, 3, 4])
def test_a_stop_at_any_block_changes_no_batch(stopped_after: int) -> None:
    store, batches = make_store(), []
    for number in range(1, 7):
        batches.append(feed(store, number))
        if batches[-1] is not None and number != stopped_after:
            store.mark_consumed()
        if number == stopped_after:
            state, store = store.state_dict(), make_store()
            store.load_state_dict(state)
            if batches[-1] is not None:
                assert rewards(store) == batches[-1], "the update that was interrupted has the same batch"
                store.mark_consumed()
                assert store.state_dict()["joined"] is None, "what was learned from is not saved"
    assert batches == [None, [1, 1, 2, 2], None, [3, 3, 4, 4], None, [5, 5, 6, 6]]
