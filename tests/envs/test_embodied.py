"""An environment that writes the shared rollout itself gives the same numbers as one that is copied from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.envs.base import Env, StepResult, WritesRollout
from quintain.errors import SpecMismatch
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.rollouts.sync_collector import SyncCollector
from tests.declared import declared
from tests.envs.point_mass import PointMass

T = 6


class Copied(Env):
    """The same environment without its ability to write, so that the collector has to copy."""

    def __init__(self, env: PointMass) -> None:
        self.env, self.spec, self.num_lanes = env, env.spec, env.num_lanes

    def reset(self, lanes: Any = None) -> Any:
        return self.env.reset(lanes)

    def step(self, action: Any) -> StepResult:
        return self.env.step(action)


def collector_of(env: Env) -> tuple[SyncCollector, Rollout]:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,)), env.spec, Rng(1))
    return SyncCollector(env, policy, Rng(2)), Rollout(
        env.spec, num_lanes=env.num_lanes, num_steps=T, fields=declared()
    )


def test_only_one_of_them_writes_for_itself() -> None:
    assert isinstance(PointMass(), WritesRollout)
    assert not isinstance(Copied(PointMass()), WritesRollout)


def test_writing_and_copying_give_the_same_rollouts() -> None:
    (writing, mine), (copying, theirs) = collector_of(PointMass()), collector_of(Copied(PointMass()))
    for _ in range(5):
        assert writing.collect(mine)
        assert copying.collect(theirs)
        for name, field in theirs.storage.items():
            assert torch.equal(mine.storage[name], field), name
    assert mine.storage[f.DONE].any()


def test_the_collector_copies_nothing_that_the_environment_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    collector, rollout = collector_of(PointMass(max_episode_steps=None, goal=0.0))
    written: list[str] = []
    original = Rollout.write

    def spy(self: Rollout, name: str, t: int, value: Any) -> None:
        written.append(name)
        original(self, name, t, value)

    monkeypatch.setattr(Rollout, "write", spy)
    collector.collect(rollout)
    # `first` is the collector's own, and slot 0 of `obs` comes from the rollout before.
    assert written.count(f.OBS) == 1
    assert set(written) == {f.OBS, f.FIRST}


def test_a_step_is_written_into_the_rollouts_own_memory() -> None:
    env = PointMass(2)
    rollout = Rollout(env.spec, num_lanes=2, num_steps=3, fields=declared())
    env.reset()
    env.set_rollout_buffer(rollout.td())
    result = env.step(torch.tensor([[1.0], [-1.0]]))
    assert env.current_rollout_step == 1
    assert result.reward.data_ptr() == rollout.storage[f.REWARD][0].data_ptr()
    assert result.obs.data_ptr() == rollout.storage[f.OBS][1].data_ptr()
    assert torch.equal(rollout[f.OBS][:, 1, 0], env.position)


def test_steps_beyond_the_rollout_go_elsewhere_and_are_counted() -> None:
    env = PointMass(2)
    rollout = Rollout(env.spec, num_lanes=2, num_steps=1, fields=declared())
    env.reset()
    env.set_rollout_buffer(rollout.td())
    env.step(torch.ones(2, 1))
    before = {name: field.clone() for name, field in rollout.storage.items()}
    result = env.step(torch.ones(2, 1))
    assert env.current_rollout_step == 2
    assert torch.equal(result.obs[:, 0], env.position)
    for name, field in rollout.storage.items():
        assert torch.equal(field, before[name]), name


@pytest.mark.parametrize(
    ("rollout", "why"),
    [
        (Rollout(PointMass(3).spec, num_lanes=3, num_steps=2, fields=declared()).td(), "3 lanes, the environment 2"),
        (TensorDict({"obs": torch.zeros(2, 3, 2)}, batch_size=[2, 3]), "nothing for 'terminated'"),
        (
            Rollout(PointMass(2).spec, num_lanes=2, num_steps=2, fields=declared())
            .td()
            .set("reward", torch.zeros(2, 3, dtype=torch.float64)),
            "torch.float64",
        ),
    ],
    ids=["lanes", "missing", "dtype"],
)
def test_a_rollout_that_does_not_fit_is_refused(rollout: TensorDict, why: str) -> None:
    with pytest.raises(SpecMismatch, match=why):
        PointMass(2).set_rollout_buffer(rollout)


def test_the_order_of_a_step_is_the_documented_one() -> None:
    """Simulation, interval events, observation, reward, record, reset of what ended, reset events, observation."""
    calls: list[str] = []

    class Told(PointMass):
        def advance(self, action: Any) -> None:
            calls.append("advance")
            super().advance(action)

        def write_obs(self, out: Any, lanes: Any) -> None:
            calls.append("obs" if lanes is None else f"obs of {lanes.tolist()}")
            super().write_obs(out, lanes)

        def write_reward(self, out: torch.Tensor, action: Any) -> None:
            calls.append("reward")
            super().write_reward(out, action)

        def start_episodes(self, lanes: torch.Tensor) -> None:
            # The step is recorded by now, and nothing of the next episode can change it.
            calls.append(f"reset {lanes.tolist()}, recorded {bool(self.rows and self.rows[0][f.TRUNCATED][1])}")
            super().start_episodes(lanes)

    from quintain.envs.eventful import with_events

    env = Told(2, max_episode_steps=3)
    events = {
        "wind": {"func": lambda env, lanes: calls.append("interval"), "mode": "step"},
        "start": {"func": lambda env, lanes: calls.append(f"reset event {lanes.tolist()}"), "mode": "reset"},
    }
    assert with_events(env, events, Rng(0)) is env
    env.reset()
    env.elapsed_steps[1] = 2
    env.set_rollout_buffer(Rollout(env.spec, num_lanes=2, num_steps=2, fields=declared()).td())
    calls.clear()
    env.position[:] = 1.0
    env.step(torch.zeros(2, 1))
    assert calls == [
        "advance", "interval", "obs", "reward", "reset [1], recorded True", "reset event [1]", "obs of [1]",
    ]  # fmt: skip


def test_the_last_observation_is_kept_and_only_rows_that_ended_are_observed_again() -> None:
    env = PointMass(2, max_episode_steps=1)
    env.reset()
    env.elapsed_steps[0] = -5  # lane 0 goes on
    result = env.step(torch.tensor([[0.5], [0.5]]))
    assert result.truncated.tolist() == [False, True]
    # The gain is 0.2, so lane 1 stood at its start plus 0.1 when it was cut, and stands at another start now.
    start = (2 * 0.37 + 1 * 0.53) % 2.0 - 1.0
    assert result.final_obs[1, 0].item() == pytest.approx(start + 0.1)
    assert result.obs[1, 0].item() == pytest.approx((2 * 0.37 + 2 * 0.53) % 2.0 - 1.0)
    assert result.obs[0, 0].item() == pytest.approx(env.position[0].item())


def test_what_is_said_about_a_step_does_not_change_with_the_next_episode() -> None:
    env = PointMass(1, max_episode_steps=2)
    env.reset()
    env.step(torch.zeros(1, 1))
    info = env.step(torch.zeros(1, 1)).info
    assert info is not None
    assert info["elapsed_steps"].tolist() == [2]
    assert env.elapsed_steps.tolist() == [0]


def test_an_episode_begins_without_an_action_before_it() -> None:
    env = PointMass(2, max_episode_steps=1, goal=0.0)
    env.reset()
    env.elapsed_steps[0] = -5  # lane 0 goes on, lane 1 begins anew
    env.step(torch.tensor([[0.5], [0.5]]))
    info = env.step(torch.tensor([[0.5], [0.5]])).info
    assert info is not None
    assert info["rewards"]["jerk"].tolist() == [0.0, 0.5]


def test_its_state_is_saved_and_a_rollout_can_be_continued_elsewhere() -> None:
    (whole, expected), (first, part) = collector_of(PointMass()), collector_of(PointMass())
    whole.collect(expected)
    steps = iter([False, False, False, True])
    assert not first.collect(part, should_stop=lambda: next(steps))
    second, continued = collector_of(PointMass())
    second.load_state_dict(first.state_dict())
    continued.load_state_dict(part.state_dict())
    assert second.collect(continued)
    for name, field in expected.storage.items():
        assert torch.equal(continued.storage[name], field), name


def test_parameters_are_set_in_lanes_and_only_where_there_are_any() -> None:
    env = PointMass(3)
    env.set_parameters({"gain": 0.5}, [1])
    env.set_parameters({"gain": [0.1, 0.3]}, [0, 2])
    assert env.gain.tolist() == pytest.approx([0.1, 0.5, 0.3])
    env.set_parameters({"friction": 0.25})
    assert env.friction == 0.25
    with pytest.raises(Exception, match="one number for all lanes") as failed:
        env.set_parameters({"friction": 0.5}, [0])
    assert failed.value.code == "E0521"
    with pytest.raises(Exception, match=r"no parameter 'weight'; it has .*friction"):
        env.set_parameters({"weight": 1.0})
