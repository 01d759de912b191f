"""The collector writes what happened, can be left after any step, and makes no memory while it runs."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.envs.base import Env, StepResult
from quintain.envs.gym.lanes import LaneEnv
from quintain.errors import NonFiniteError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.rollouts.sync_collector import SyncCollector
from quintain.services.checkpoints.state_files import decode, encode
from tests.declared import declared
from tests.scripted import MODES, Episode, LinearPolicy, expected_rows, never, scripted_env, value_at

SCRIPT = [
    [Episode(3, "truncated"), Episode(1, "both"), Episode(4, "terminated")],
    [Episode(2, "terminated"), Episode(2, "truncated")],
]
T = 6


class Heard:
    """Remembers the episodes it is told of."""

    def __init__(self) -> None:
        self.returns: list[float] = []
        self.lengths: list[int] = []

    def __call__(self, returns: Any, lengths: Any) -> None:
        self.returns += returns.tolist()
        self.lengths += lengths.tolist()


def rollout_for(env: Env, num_steps: int = T) -> Rollout:
    return Rollout(env.spec, num_lanes=env.num_lanes, num_steps=num_steps, fields=declared())


@pytest.mark.parametrize("mode", MODES)
def test_every_slot_holds_what_the_script_says(mode: str) -> None:
    env = scripted_env(SCRIPT, mode)
    collector = SyncCollector(env, LinearPolicy(env.spec), Rng(0), Heard())
    rollout = rollout_for(env)
    for number in range(4):
        assert collector.collect(rollout, version=number, should_stop=never)
        assert rollout.sequence == number + 1
        assert (rollout[f.POLICY_VERSION] == number).all()
        for lane, episodes in enumerate(SCRIPT):
            rows = expected_rows(lane, episodes, (number + 1) * T + 1, mode)[number * T :]
            for t, row in enumerate(rows):
                where = f"{mode}, rollout {number}, lane {lane}, slot {t}"
                assert rollout[f.OBS][lane, t].tolist() == list(row.obs), where
                assert rollout[f.FIRST][lane, t] == row.first, where
                assert rollout[f.VALUE][lane, t] == value_at(*row.obs), where
                if t == T:
                    continue
                is_end = row.terminated or row.truncated
                assert rollout[f.REWARD][lane, t] == row.reward, where
                assert rollout[f.TERMINATED][lane, t] == row.terminated, where
                assert rollout[f.TRUNCATED][lane, t] == row.truncated, where
                assert rollout[f.DONE][lane, t] == is_end, where
                assert rollout[f.VALID][lane, t] == row.valid, where
                index = int(rollout[f.FINAL_INDEX][lane, t])
                if is_end:
                    assert rollout.final.rows[f.OBS][index].tolist() == list(row.final_obs), where
                else:
                    assert index == -1, where
                is_cut = row.truncated and not row.terminated
                assert rollout[f.FINAL_VALUE][lane, t] == (value_at(*row.final_obs) if is_cut else 0.0), where


@pytest.mark.parametrize("mode", MODES)
def test_returns_and_lengths_are_those_of_whole_episodes(mode: str) -> None:
    env, heard = scripted_env(SCRIPT, mode), Heard()
    collector = SyncCollector(env, LinearPolicy(env.spec), Rng(0), heard)
    rollout = rollout_for(env, num_steps=2)
    for _ in range(5 if mode != "NextStep" else 6):
        collector.collect(rollout, 0, never)
    # Lane 0: e0 1 + 1.5 + 2 = 4.5 in 3; e1 0.75 in 1; e2 0.5 + 1 + 1.5 + 2 = 5 in 4.
    # Lane 1: e0 2 + 2.5 = 4.5; e1 1.75 + 2.25 = 4; e2 1.5 + 2 = 3.5; e3 1.25 + 1.75 = 3, all in 2.
    heard_of = sorted(zip(heard.returns, heard.lengths, strict=True))
    expected = [(4.5, 3), (0.75, 1), (5.0, 4), (4.5, 2), (4.0, 2), (3.5, 2), (3.0, 2)]
    if mode == "NextStep":
        # 12 rows: lane 0 takes 4 + 2 + 5 and one more, lane 1 takes 3 per episode.
        assert heard_of == sorted(expected)
    else:
        # 10 rows: lane 0 took 8 for its three episodes and 2 of the next; lane 1 a fifth episode, 1 + 1.5 = 2.5.
        assert heard_of == sorted([*expected, (2.5, 2)])


def cartpole(num_lanes: int = 3) -> LaneEnv:
    return LaneEnv("CartPole-v1", [lambda: gymnasium.make("CartPole-v1", max_episode_steps=15)] * num_lanes, Rng(4))


def acting(env: Env) -> ActorCritic:
    return ActorCritic(ActorCriticSettings(hidden_sizes=(8,)), env.spec, Rng(1))


def collected(num_rollouts: int) -> tuple[list[dict[str, torch.Tensor]], SyncCollector]:
    env = cartpole()
    collector, rollout = SyncCollector(env, acting(env), Rng(2), Heard()), rollout_for(env, 10)
    kept = []
    for _ in range(num_rollouts):
        collector.collect(rollout, 0, never)
        kept.append({name: field.clone() for name, field in rollout.storage.items()})
    return kept, collector


class StopAfter:
    """Lets some steps pass and then asks to stop."""

    def __init__(self, num_steps: int) -> None:
        self.steps_left = num_steps

    def __call__(self) -> bool:
        self.steps_left -= 1
        return self.steps_left < 0


@pytest.mark.parametrize("stop_after", range(11))
@pytest.mark.parametrize("in_another_process", [False, True])
def test_a_rollout_left_after_any_step_and_continued_is_the_same(stop_after: int, in_another_process: bool) -> None:
    expected, finished = collected(2)
    env = cartpole()
    collector, rollout = SyncCollector(env, acting(env), Rng(2), Heard()), rollout_for(env, 10)
    collector.collect(rollout, 0, never)
    is_whole = collector.collect(rollout, 0, StopAfter(stop_after))
    assert is_whole == (stop_after == 10)
    if in_another_process:
        saved = encode(
            {"training": {"collector": collector.state_dict(), "rollout": rollout.state_dict()}, "records": {}}
        )
        state = decode(saved)["training"]
        env = cartpole()
        collector, rollout = SyncCollector(env, acting(env), Rng(2), Heard()), rollout_for(env, 10)
        collector.load_state_dict(state["collector"])
        rollout.load_state_dict(state["rollout"])
    if not is_whole:
        assert collector.collect(rollout, 0, never)
    for name, field in expected[1].items():
        assert torch.equal(rollout.storage[name], field), name
    np.testing.assert_array_equal(collector.episode_return, finished.episode_return)
    np.testing.assert_array_equal(collector.episode_length, finished.episode_length)
    assert collector.lane_step == finished.lane_step == 20
    assert rollout.sequence == 2


def test_the_next_rollout_begins_where_the_last_one_ended() -> None:
    (first, second), _ = collected(2)
    assert torch.equal(second[f.OBS][0], first[f.OBS][-1])
    assert torch.equal(second[f.FIRST][0], first[f.FIRST][-1])
    assert not torch.equal(second[f.NOISE][0], first[f.NOISE][0])


def test_numbers_do_not_depend_on_the_length_of_rollouts() -> None:
    env = cartpole()
    long, one = rollout_for(env, 20), SyncCollector(env, acting(env), Rng(2), Heard())
    one.collect(long, 0, never)
    parts, _ = collected(2)
    for name in (f.OBS, f.ACTION, f.REWARD, f.NOISE):
        assert torch.equal(long.storage[name][:20], torch.cat([part[name][:10] for part in parts]))


def test_only_clipped_actions_reach_the_environment_and_only_sampled_ones_the_rollout() -> None:
    class Keeps(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-0.1, 0.1, (1,), np.float32)
        given: list[float] = []  # noqa: RUF012  # one list for all lanes is what the test reads

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            self.given.append(float(action[0]))
            return np.zeros(2, np.float32), 0.0, False, False, {}

    env = LaneEnv("keeps", [Keeps], Rng(0))
    rollout = rollout_for(env, 20)
    SyncCollector(env, acting(env), Rng(0), Heard()).collect(rollout, 0, never)
    sampled = rollout.flat(f.ACTION).ravel()
    assert sampled.abs().max() > 0.1
    np.testing.assert_array_equal(Keeps.given, sampled.clamp(-0.1, 0.1).tolist())


class TensorEnv(Env):
    """Steps in tensors, as simulators on a device do."""

    def __init__(self) -> None:
        self.spec = BehaviorSpec(obs=box(2), action=discrete(2))
        self.num_lanes = 2
        self.count = torch.zeros(2)

    def reset(self, lanes: Any = None) -> torch.Tensor:
        self.count.zero_()
        return torch.zeros(2, 2)

    def step(self, action: torch.Tensor) -> StepResult:
        self.count += 1
        end = self.count == torch.tensor([2.0, 99.0])
        final = self.count[:, None].expand(2, 2).clone()
        self.count[end] = 0
        obs = self.count[:, None].expand(2, 2)
        return StepResult(obs, torch.ones(2), torch.zeros(2, dtype=torch.bool), end, final)


def test_environments_may_speak_tensors() -> None:
    env, heard = TensorEnv(), Heard()
    rollout = rollout_for(env, 5)
    SyncCollector(env, acting(env), Rng(0), heard).collect(rollout, 0, never)
    assert rollout[f.OBS][0, :, 0].tolist() == [0, 1, 0, 1, 0, 1]
    assert rollout[f.OBS][1, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert rollout[f.TRUNCATED][0, :5].tolist() == [False, True, False, True, False]
    assert rollout.final.rows[f.OBS][int(rollout[f.FINAL_INDEX][0, 1])].tolist() == [2, 2]
    assert heard.lengths == [2, 2]


@pytest.mark.parametrize("field", ["obs", "reward", "final_obs"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused_with_their_place(field: str, bad: float) -> None:
    env = scripted_env([[Episode(9, "terminated")], [Episode(2, "truncated")]], "lanes")
    step = env.step

    def spoiled(action: torch.Tensor) -> StepResult:
        result = step(action)
        if result.truncated[1]:
            result = result._replace(**{field: np.array(getattr(result, field))})
            getattr(result, field)[1] = bad
        return result

    env.step = spoiled  # type: ignore[method-assign]
    collector = SyncCollector(env, LinearPolicy(env.spec), Rng(0), Heard())
    with pytest.raises(NonFiniteError, match="not finite in lane 1, step ") as failed:
        collector.collect(rollout_for(env), 0, never)
    assert (failed.value.code, failed.value.exit_code) == ("E0601", 6)


class CountsFactories(TorchDispatchMode):
    """Counts the operations whose only purpose is to make new memory."""

    FACTORIES = ("empty", "zeros", "ones", "full", "arange", "rand", "randn", "new_empty", "new_zeros", "new_full",
                 "zeros_like", "ones_like", "empty_like", "full_like", "scalar_tensor", "eye", "linspace")  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.FACTORIES or name == "empty_strided":
            self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


ALLOWED = {
    # The rows of final observations that ended at this step: one small index per step in which an episode ended.
    "arange",
}


@pytest.mark.parametrize("continuous", [False, True])
def test_collecting_makes_no_new_memory_for_fields(continuous: bool) -> None:
    env: Env = cartpole()
    if continuous:
        env = LaneEnv("Pendulum-v1", [lambda: gymnasium.make("Pendulum-v1", max_episode_steps=7)] * 3, Rng(0))
    collector, rollout = SyncCollector(env, acting(env), Rng(2), Heard()), rollout_for(env, 10)
    collector.collect(rollout, 0, never)
    places = {name: field.data_ptr() for name, field in rollout.storage.items()}
    with CountsFactories() as factories:
        collector.collect(rollout, 1, never)
    assert rollout.final.count > 0
    assert set(factories.counts) <= ALLOWED, factories.counts
    assert factories.counts.get("arange", 0) <= 10
    for _ in range(3):
        collector.collect(rollout, 2, never)
    assert {name: field.data_ptr() for name, field in rollout.storage.items()} == places


def test_the_count_of_factories_can_fail() -> None:
    with CountsFactories() as factories:
        torch.zeros(3)
        torch.full((2,), 1.0)
    assert factories.counts.keys() >= {"zeros", "full"}
