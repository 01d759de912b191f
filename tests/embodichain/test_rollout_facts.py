"""The shared rollout as EmbodiChain documents it: its fields, its last row, who writes when, and what shares memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from quintain import transition_view
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.rollouts.sync_collector import SyncCollector
from tests.declared import declared
from tests.envs.point_mass import PointMass
from tests.scripted import Episode, LinearPolicy, scripted_env, value_at

N, T = 4, 6


def collected(env: PointMass | None = None, num_rollouts: int = 1) -> tuple[Rollout, SyncCollector]:
    env = env or PointMass(N)
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,)), env.spec, Rng(1))
    collector = SyncCollector(env, policy, Rng(2))
    rollout = Rollout(env.spec, num_lanes=N, num_steps=T, fields=declared())
    for _ in range(num_rollouts):
        collector.collect(rollout)
    return rollout, collector


def test_the_rollout_is_a_tensordict_of_lanes_by_steps_and_one() -> None:
    td = collected()[0].td()
    assert isinstance(td, TensorDict)
    assert td.batch_size == torch.Size([N, T + 1])
    floats, flags = (torch.float32, torch.bool)
    expected = {
        "obs": (floats, (2,)), "action": (floats, (1,)), "sample_log_prob": (floats, ()), "value": (floats, ()),
        "reward": (floats, ()), "done": (flags, ()), "terminated": (flags, ()), "truncated": (flags, ()),
    }  # fmt: skip
    for name, (dtype, shape) in expected.items():
        assert td[name].dtype == dtype, name
        assert td[name].shape == (N, T + 1, *shape), name


def test_it_shares_the_memory_of_the_rollout_in_both_directions() -> None:
    rollout, _ = collected()
    td = rollout.td()
    td["reward"][2, 3] = 7.5
    assert rollout.storage[f.REWARD][3, 2] == 7.5
    rollout.storage[f.VALUE][0, 1] = -2.5
    assert td["value"][1, 0] == -2.5
    for name in rollout.storage:
        assert td[name].untyped_storage().data_ptr() == rollout.storage[name].untyped_storage().data_ptr(), name


def test_structured_fields_are_nested_and_shared_too() -> None:
    spec = BehaviorSpec(obs=DictSpec((("pose", box(3)), ("mode", discrete(2)))), action=box(1))
    rollout = Rollout(spec, num_lanes=2, num_steps=3, fields=declared())
    td = rollout.td()
    td["obs", "pose"][1, 2, 0] = 4.0
    assert rollout.storage["obs.pose"][2, 1, 0] == 4.0
    assert td["obs"].batch_size == torch.Size([2, 4])


def test_the_last_row_holds_the_observation_after_the_last_step_and_its_value() -> None:
    rollout, collector = collected()
    env = collector.env
    assert isinstance(env, PointMass)
    assert torch.equal(rollout[f.OBS][:, T, 0], env.position)
    assert torch.equal(rollout[f.VALUE][:, T], collector.policy.value_of(rollout[f.OBS][:, T]))


def test_the_last_row_after_an_ended_episode_is_the_first_of_the_next() -> None:
    rollout, collector = collected(PointMass(N, max_episode_steps=T, goal=0.0))
    env = collector.env
    assert isinstance(env, PointMass)
    assert rollout[f.DONE][:, T - 1].all()
    start = ((torch.arange(N) + 1) * 0.37 + 2 * 0.53) % 2.0 - 1.0
    torch.testing.assert_close(rollout[f.OBS][:, T, 0], start)
    assert rollout[f.FIRST][:, T].all()


def test_everything_else_in_the_last_row_is_padding_also_when_the_memory_is_used_again() -> None:
    rollout, _ = collected(num_rollouts=3)
    for name in (f.ACTION, f.LOG_PROB, f.REWARD, f.DONE, f.TERMINATED, f.TRUNCATED):
        assert not rollout[name][:, T].any(), name


def test_the_policys_fields_are_there_before_the_environment_steps_and_the_environments_after() -> None:
    seen: list[tuple[bool, bool, bool]] = []

    class Looks(PointMass):
        def advance(self, action: Any) -> None:
            row = self.lent[:, self.current_rollout_step]
            # Not yet clipped for the environment, so larger or equal.
            chosen = torch.equal(row["action"].clamp(-1.0, 1.0), action)
            is_judged = bool((row["sample_log_prob"] != 0).all() and (row["value"] != 0).all())
            seen.append((chosen, is_judged, bool((row["reward"] == 0).all())))
            super().advance(action)

    collected(Looks(N), num_rollouts=2)
    assert seen == [(True, True, True)] * 2 * T


def test_the_next_rollout_goes_on_where_this_one_ended() -> None:
    env = PointMass(N)
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,)), env.spec, Rng(1))
    collector = SyncCollector(env, policy, Rng(2))
    rollout = Rollout(env.spec, num_lanes=N, num_steps=T, fields=declared())
    collector.collect(rollout)
    last = rollout[f.OBS][:, T].clone()
    collector.collect(rollout)
    assert torch.equal(rollout[f.OBS][:, 0], last)


def test_transition_view_is_a_view_of_the_first_steps() -> None:
    rollout, _ = collected()
    view = transition_view(rollout)
    assert view.batch_size == torch.Size([N, T])
    for name in rollout.storage:
        assert view[name].untyped_storage().data_ptr() == rollout.storage[name].untyped_storage().data_ptr(), name
        assert torch.equal(view[name], rollout[name][:, :T]), name
    view["reward"][0, 0] = 9.0
    assert rollout.storage[f.REWARD][0, 0] == 9.0


def test_transition_view_takes_the_tensordict_as_well() -> None:
    rollout, _ = collected()
    from_rollout, from_td = transition_view(rollout), transition_view(rollout.td())
    assert set(from_rollout.keys()) == set(from_td.keys())
    for name in from_td.keys():  # noqa: SIM118  # a TensorDict iterates over its rows
        assert torch.equal(from_rollout[name], from_td[name]), name


def test_flattened_rows_are_in_lane_order() -> None:
    rollout, _ = collected()
    flat = transition_view(rollout, flatten=True)
    assert flat.batch_size == torch.Size([N * T])
    for lane in range(N):
        for t in range(T):
            assert torch.equal(flat["obs"][lane * T + t], rollout[f.OBS][lane, t])


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_next_value_is_what_a_step_bootstraps_from(end: str) -> None:
    env = scripted_env([[Episode(3, end)]], "lanes")
    rollout = Rollout(env.spec, num_lanes=1, num_steps=4, fields=declared())
    SyncCollector(env, LinearPolicy(env.spec), Rng(0)).collect(rollout)
    # The value of the next observation; at the end nothing, or the value of the episode's own last observation; then
    # that of the second step of the next episode.
    at_end = 0.0 if end == "terminated" else value_at(0, 0, 3)
    expected = [value_at(0, 0, 1), value_at(0, 0, 2), at_end, value_at(0, 1, 1)]
    assert transition_view(rollout)["next_value"][0].tolist() == expected


def test_step_info_has_success_fail_age_metrics_and_the_terms_of_the_reward() -> None:
    env = PointMass(2, goal=0.0)
    env.reset()
    info = env.step(torch.tensor([[1.0], [-1.0]])).info
    assert info is not None
    assert set(info) == {"success", "fail", "elapsed_steps", "metrics", "rewards"}
    assert info["elapsed_steps"].tolist() == [1, 1]
    assert torch.equal(info["metrics"]["distance"], env.position.abs())
    assert info["rewards"].keys() == {"nearer", "jerk"}  # before their weights
    assert info["rewards"]["jerk"].tolist() == [1.0, 1.0]
