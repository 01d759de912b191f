"""Rollouts that begin new episodes in every lane, and count nothing but these."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.rollouts.sync_collector import SyncCollector
from tests.declared import declared
from tests.scripted import Episode, LinearPolicy, never, scripted_env

T = 6
SCRIPT = [
    [Episode(3, "truncated"), Episode(1, "both")],
    [Episode(2, "terminated")],
    [Episode(9, "terminated")],
]


def collected(script: Any, num_rollouts: int) -> tuple[Rollout, SyncCollector, list[Any]]:
    env, heard = scripted_env(script, "lanes"), []
    collector = SyncCollector(
        env, LinearPolicy(env.spec), Rng(0), lambda r, n: heard.extend(zip(r, n, strict=True)), starts_fresh=True
    )
    rollout = Rollout(env.spec, num_lanes=env.num_lanes, num_steps=T, fields=declared())
    for number in range(num_rollouts):
        assert collector.collect(rollout, number, never)
    return rollout, collector, heard


def test_only_the_first_episode_of_each_lane_counts() -> None:
    rollout, _, heard = collected(SCRIPT, 1)
    assert rollout[f.VALID][:, :T].int().tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]
    assert rollout[f.DONE][:, :T].int().tolist() == [[0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
    assert rollout[f.FIRST][:, 0].all()
    assert (Batch(rollout).num_valid, Batch(rollout).num_episodes) == (11, 2)
    # Rewards are 1 + lane + k/2 - e/4; lane 1 ends first: 2 + 2.5; then lane 0: 1 + 1.5 + 2.
    assert heard == [(4.5, 2), (4.5, 3)]


def test_the_next_rollout_begins_new_episodes_wherever_the_last_one_stood() -> None:
    rollout, _, _ = collected(SCRIPT, 2)
    starts = rollout[f.OBS][:, 0]
    assert starts[:, 2].tolist() == [0, 0, 0]  # step 0 of an episode
    assert (starts[:, 1] > 0).all()  # not the first one
    assert rollout[f.FIRST][:, 0].all()


@pytest.mark.parametrize("num_rollouts", [1, 3])
def test_a_rollout_ends_when_every_lane_has_and_leaves_nothing_of_the_last_one_behind(num_rollouts: int) -> None:
    script = [[Episode(3, "truncated")], [Episode(2, "terminated")]]
    rollout, collector, _ = collected(script, num_rollouts)
    assert rollout[f.VALID][:, :T].int().tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]]
    for name in (f.OBS, f.ACTION, f.LOG_PROB, f.VALUE, f.REWARD, f.FIRST):
        assert not rollout[name][:, 3:T].any(), name
    assert collector.lane_step == num_rollouts * T
    # The environment did not step on: lane 0 stands at the start of its second episode.
    assert rollout[f.OBS][0, T, 2] == 0


def test_a_short_rollout_shows_nothing_of_a_longer_one_before_it() -> None:
    # The episode of nine steps begins when the first one ends, and is cut by the fresh start of the second rollout.
    script = [[Episode(6, "truncated"), Episode(9, "terminated"), Episode(2, "truncated")]]
    once, _, _ = collected(script, 1)
    assert once[f.VALID][0, :T].all()
    assert once[f.REWARD][0, 2:T].all()
    twice, _, _ = collected(script, 2)
    assert twice[f.OBS][0, :3].tolist() == [[0, 2, 0], [0, 2, 1], [0, 0, 0]]
    assert twice[f.VALID][0, :T].int().tolist() == [1, 1, 0, 0, 0, 0]
    for name in (f.OBS, f.ACTION, f.LOG_PROB, f.VALUE, f.REWARD, f.FIRST, f.TERMINATED, f.TRUNCATED):
        assert not twice[name][:, 2:T].any(), name
