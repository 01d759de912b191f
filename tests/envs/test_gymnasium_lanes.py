"""Lanes are independent streams that a resumed run rebuilds bitwise, or says that it could not."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from quintain.core.rng import Rng
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.hosts.faults import FaultKeeper
from quintain.errors import EnvError, SpecMismatch
from quintain.services.processes.restart_budget import RestartBudget
from tests.scripted import Episode, ScriptedEnv, scripted_env

CARTPOLE = partial(gymnasium.make, "CartPole-v1")
PENDULUM = partial(gymnasium.make, "Pendulum-v1")


class Recorder(gymnasium.Env[Any, Any]):
    """Remembers what it was given and does what the test says."""

    observation_space = Box(-1, 1, (2,), np.float32)

    def __init__(self, action_space: Any = None, obs: Any = (0.0, 0.0), failing: str = "") -> None:
        self.action_space = action_space or Discrete(2)
        self.obs, self.failing = obs, failing
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []
        self.is_closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.failing == "reset":
            raise RuntimeError("no such level")
        self.seeds.append(seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.failing == "step":
            raise RuntimeError("lost the pole")
        self.actions.append(action)
        return np.array(self.obs, np.float32), 0.0, len(self.actions) % 3 == 0, False, {}

    def close(self) -> None:
        self.is_closed = True


def lanes(factory: Any, num_lanes: int = 2, seed: int = 0) -> LaneEnv:
    return LaneEnv("env", [factory] * num_lanes, Rng(seed))


def coin_flips(num_steps: int, num_lanes: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 2, (num_steps, num_lanes)))


def test_every_lane_and_episode_has_a_seed_of_its_own() -> None:
    env = lanes(Recorder, 3)
    env.reset()
    for _ in range(6):
        env.step(torch.zeros(3, dtype=torch.int64))
    seeds = [recorder.seeds for recorder in env.envs]
    assert [len(of_lane) for of_lane in seeds] == [3, 3, 3]  # one at the start and one after each third step
    assert len({seed for of_lane in seeds for seed in of_lane}) == 9
    assert all(seed is not None for of_lane in seeds for seed in of_lane)


def test_a_lane_plays_the_same_episodes_whoever_its_neighbours_are() -> None:
    one, three = lanes(CARTPOLE, 1), lanes(CARTPOLE, 3)
    flips = coin_flips(80, 3)
    np.testing.assert_array_equal(one.reset()[0], three.reset()[0])
    for action in flips:
        alone, together = one.step(action[:1]), three.step(action)
        np.testing.assert_array_equal(alone.obs[0], together.obs[0])
        np.testing.assert_array_equal(alone.final_obs[0], together.final_obs[0])
    assert one.episode[0] > 0  # an episode ended on the way


def test_the_true_last_observation_is_kept_apart_from_the_next_first_one() -> None:
    env = scripted_env([[Episode(2, "terminated")], [Episode(3, "truncated")]], "lanes")
    env.reset()
    none = torch.zeros(2, dtype=torch.int64)
    env.step(none)
    second = env.step(none)
    assert second.obs.tolist() == [[0, 1, 0], [1, 0, 2]]
    assert second.final_obs[0].tolist() == [0, 0, 2]
    assert second.terminated.tolist() == [True, False]
    third = env.step(none)
    assert third.obs.tolist() == [[0, 1, 1], [1, 1, 0]]
    assert third.final_obs[1].tolist() == [1, 0, 3]
    assert third.truncated.tolist() == [False, True]
    assert third.terminated.tolist() == [False, False]


class Drawn(Recorder):
    """Is drawn as a grey that tells how many steps its episode has had, always into the same array."""

    def __init__(self) -> None:
        super().__init__()
        self.canvas = np.zeros((1, 1, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.actions = []
        return super().reset(seed=seed)

    def render(self) -> Any:
        self.canvas[:] = len(self.actions)
        return self.canvas


def test_the_end_of_an_episode_is_drawn_before_the_next_one_begins() -> None:
    env = lanes(Drawn)
    env.reset()
    drawn = [env.render()]
    for _ in range(5):
        env.step(coin_flips(1, 2)[0])
        drawn.append(env.render())
    # Episodes have 3 steps. A frame that was returned stays as it was.
    assert [int(frame[0, 0, 0]) for frame in drawn if frame is not None] == [0, 1, 2, 3, 1, 2]


def test_a_mask_resets_only_its_lanes() -> None:
    env = scripted_env([[Episode(9, "terminated")]] * 3, "lanes")
    env.reset()
    env.step(torch.zeros(3, dtype=torch.int64))
    obs = env.reset(np.array([False, True, False]))
    assert obs.tolist() == [[0, 0, 1], [1, 1, 0], [2, 0, 1]]


def test_choices_start_where_the_environment_starts_them() -> None:
    env = lanes(partial(Recorder, Discrete(3, start=5)), 2)
    env.reset()
    env.step(torch.tensor([0, 2]))
    assert [recorder.actions for recorder in env.envs] == [[5], [7]]
    assert all(type(action) is int for recorder in env.envs for action in recorder.actions)


def test_box_actions_arrive_in_their_shape_and_may_be_kept() -> None:
    env = lanes(partial(Recorder, Box(-1, 1, (2, 2), np.float32)), 2)
    env.reset()
    action = torch.arange(8, dtype=torch.float32).reshape(2, 2, 2)
    env.step(action)
    action.zero_()
    assert env.envs[1].actions[0].tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize("obs", [(0.0,), (0.0, 0.0, 0.0), 0.0, ((0.0, 0.0),)])
def test_an_observation_of_another_shape_is_an_error_of_the_environment(obs: Any) -> None:
    env = lanes(partial(Recorder, obs=obs))
    env.reset()
    with pytest.raises(EnvError, match=r"step\(\) returned obs of shape .*, declared Box\(2\)") as failed:
        env.step(torch.zeros(2, dtype=torch.int64))
    assert (failed.value.code, failed.value.exit_code) == ("E0511", 5)


class Shows(Recorder):
    """Returns an observation as it was given."""

    def __init__(self, shown: Any) -> None:
        super().__init__()
        self.shown = shown

    def step(self, action: Any) -> Any:
        return self.shown, *super().step(action)[1:]


class Says(Recorder):
    """Returns what it was given as the ends of a step."""

    def __init__(self, terminated: Any, truncated: Any) -> None:
        super().__init__()
        self.ends = terminated, truncated

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, *self.ends, info


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("false", "'false'"),
        (np.array([False]), r"an array of shape \(1,\)"),
        (np.array([True, False]), r"an array of shape \(2,\)"),
        (None, "None"),
        (2, "2"),
        (0.5, "0.5"),
        ([], r"an array of shape \(0,\)"),
    ],
)
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_what_is_no_truth_value_is_an_error_of_the_environment(value: Any, shown: str, name: str) -> None:
    ends = (value, False) if name == "terminated" else (False, value)
    env = lanes(partial(Says, *ends))
    env.reset()
    with pytest.raises(EnvError, match=rf"step\(\) returned {name} as {shown}, expected True or False") as failed:
        env.step(torch.zeros(2, dtype=torch.int64))
    assert failed.value.code == "E0511"


@pytest.mark.parametrize("value", [True, np.True_, np.array(True), 1, np.int64(1), np.array(1)])
def test_every_kind_of_truth_value_is_understood(value: Any) -> None:
    for ends in ((value, False), (np.False_, value), (value, 0)):
        env = lanes(partial(Says, *ends), 1)
        env.reset()
        result = env.step(torch.zeros(1, dtype=torch.int64))
        assert result.terminated.tolist() == [bool(ends[0])]
        assert result.truncated.tolist() == [bool(ends[1])]


@pytest.mark.parametrize("obs", [np.array([1.0, 2.0], object), np.array(["1", "2"]), ("1", "2"), [None, 1.0]])
def test_an_observation_without_numbers_is_an_error_of_the_environment(obs: Any) -> None:
    env = lanes(partial(Shows, obs))
    env.reset()
    with pytest.raises(EnvError, match=r"step\(\) returned obs of dtype .*, which holds no numbers") as failed:
        env.step(torch.zeros(2, dtype=torch.int64))
    assert failed.value.code == "E0511"


def test_an_environment_that_raises_is_named_with_its_lane_and_action() -> None:
    env = LaneEnv("Pole-v0", [Recorder, partial(Recorder, failing="step")], Rng(0))
    env.reset()
    with pytest.raises(EnvError) as failed:
        env.step(torch.tensor([0, 1]))
    assert failed.value.code == "E0501"
    assert failed.value.message == (
        "env 'Pole-v0' failed in step() on lane 1, episode 0, action 1: RuntimeError: lost the pole"
    )
    with pytest.raises(EnvError, match=r"failed in reset\(\) on lane 0: RuntimeError: no such level") as failed:
        lanes(partial(Recorder, failing="reset")).reset()
    assert failed.value.code == "E0502"


def test_what_cannot_be_created_or_is_no_environment_is_refused() -> None:
    def broken() -> Any:
        raise OSError("no display")

    with pytest.raises(EnvError, match="cannot be created: OSError: no display") as failed:
        lanes(broken)
    assert failed.value.code == "E0505"
    with pytest.raises(EnvError, match="made a dict without reset") as failed:
        lanes(dict)
    assert failed.value.code == "E0506"
    with pytest.raises(SpecMismatch):
        lanes(partial(Recorder, gymnasium.spaces.Graph(Discrete(2), None)))


@pytest.mark.parametrize("num_steps", [0, 1, 37, 90])
@pytest.mark.parametrize("factory", [CARTPOLE, PENDULUM], ids=["choices", "numbers"])
def test_a_restored_environment_continues_bitwise_in_the_middle_of_episodes(factory: Any, num_steps: int) -> None:
    env = lanes(factory, 3)
    env.reset()
    actions = coin_flips(num_steps + 60, 3)
    if factory is PENDULUM:
        actions = actions.float().unsqueeze(-1) * 3 - 1.5
    for action in actions[:num_steps]:
        env.step(action)
    restored = lanes(factory, 3)
    restored.load_state_dict(env.state_dict())
    assert restored.exactness == "exact"
    np.testing.assert_array_equal(restored.obs["obs"], env.obs["obs"])
    for action in actions[num_steps:]:
        ours, theirs = restored.step(action), env.step(action)
        for mine, other in zip(ours[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(mine, other)
        ended = theirs.terminated | theirs.truncated
        np.testing.assert_array_equal(ours.final_obs[ended], theirs.final_obs[ended])


def test_a_restored_environment_saves_the_same_state() -> None:
    env, restored = lanes(CARTPOLE), lanes(CARTPOLE)
    env.reset()
    for action in coin_flips(25, 2):
        env.step(action)
    restored.load_state_dict(env.state_dict())
    ours, theirs = restored.state_dict(), env.state_dict()
    np.testing.assert_array_equal(ours["obs"]["obs"], theirs["obs"]["obs"])
    np.testing.assert_array_equal(ours["episode"], theirs["episode"])
    np.testing.assert_array_equal(ours["action_log"]["rows"]["action"], theirs["action_log"]["rows"]["action"])
    np.testing.assert_array_equal(ours["action_log"]["start"], theirs["action_log"]["start"])


class ChangesActions(Recorder):
    """Clips the action in place, as careless environments do."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        action *= 0.0
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_an_environment_that_writes_into_its_action_does_not_change_the_log() -> None:
    factory = partial(ChangesActions, Box(-1, 1, (1,), np.float32))
    env, restored = lanes(factory), lanes(factory)
    env.reset()
    env.step(torch.ones(2, 1))
    assert env.state_dict()["action_log"]["rows"]["action"].ravel().tolist() == [1, 1]
    restored.load_state_dict(env.state_dict())
    assert restored.state_dict()["action_log"]["rows"]["action"].ravel().tolist() == [1, 1]


class Unrepeatable(Recorder):
    """Counts all resets of the process, so that no replay finds it as it was."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        Unrepeatable.resets += 1
        return np.array([Unrepeatable.resets, 0], np.float32), {}


def test_an_environment_that_cannot_be_replayed_says_so() -> None:
    env, restored = lanes(Unrepeatable), lanes(Unrepeatable)
    env.reset()
    assert env.exactness == "exact"
    restored.load_state_dict(env.state_dict())
    assert restored.exactness.startswith("statistical: env 'env' is not repeatable")
    assert restored.exactness.endswith("in lane 0 and 1 more")


class BreaksLater(Recorder):
    """Raises in every step once the switch is thrown."""

    is_broken = False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if BreaksLater.is_broken:
            raise RuntimeError("no display")
        return super().step(action)


def test_an_environment_that_breaks_while_it_is_replayed_is_named_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keeper = FaultKeeper(RestartBudget(max_restarts=10, window_steps=1000, max_in_a_row=5))
    restored = LaneEnv("env", [BreaksLater] * 2, Rng(0), faults=keeper)
    env = lanes(BreaksLater)
    env.reset()
    env.step(torch.ones(2, dtype=torch.int64))
    monkeypatch.setattr(BreaksLater, "is_broken", True)
    restored.load_state_dict(env.state_dict())
    assert "RuntimeError: no display" in restored.exactness
    assert restored.exactness.endswith("(and in 1 more lanes), while its episode was replayed")
    assert keeper.restarts == 2
    alone = lanes(BreaksLater)
    with pytest.raises(EnvError, match="RuntimeError: no display"):
        alone.load_state_dict(env.state_dict())


class BreaksOften(Recorder):
    """Raises in every so-manieth step of all that were ever taken."""

    every = 1
    num_steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        BreaksOften.num_steps += 1
        if BreaksOften.num_steps % BreaksOften.every == 0:
            raise RuntimeError("no display")
        return super().step(action)


def breaking(every: int, monkeypatch: pytest.MonkeyPatch) -> LaneEnv:
    monkeypatch.setattr(BreaksOften, "every", every)
    monkeypatch.setattr(BreaksOften, "num_steps", 0)
    return broken_often()


def broken_often() -> LaneEnv:
    budget: RestartBudget[Any] = RestartBudget(max_restarts=10, window_steps=1000, max_in_a_row=5)
    return LaneEnv("env", [BreaksOften], Rng(0), faults=FaultKeeper(budget))


def step_until_it_ends(env: LaneEnv, num_steps: int) -> int:
    """Returns after how many steps the run would end, of so many at most."""
    reasons: list[str] = []
    env.faults.listen(lambda fault, line: None, reasons.append)
    for step in range(num_steps):
        env.step(torch.ones(1, dtype=torch.int64))
        if reasons:
            assert env.faults.spent is not None
            assert env.faults.spent.code == "E0503"
            assert "failed 10 times in 1000 steps (run.env_workers.max_restarts)" in env.faults.spent.message
            return step + 1
    return num_steps


def test_rare_faults_do_not_end_a_run_however_fast_it_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    env = breaking(120, monkeypatch)
    env.reset()
    # Thirty faults within a second or so; 9 of them in any 1,000 steps.
    assert step_until_it_ends(env, 3600) == 3600
    assert env.faults.restarts == 30


def test_frequent_faults_end_a_run_and_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    env = breaking(100, monkeypatch)
    env.reset()
    # The tenth fault is at step 1,000, 900 steps after the first.
    assert step_until_it_ends(env, 3600) == 1000


def test_faults_before_a_resume_count_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    env = breaking(100, monkeypatch)
    env.reset()
    assert step_until_it_ends(env, 610) == 610
    restored = broken_often()
    monkeypatch.setattr(BreaksOften, "every", 10**9)  # not while the episode is played again
    restored.load_state_dict(env.state_dict())
    monkeypatch.setattr(BreaksOften, "every", 100)
    monkeypatch.setattr(BreaksOften, "num_steps", 610)
    assert restored.state_dict()["faults"] == env.state_dict()["faults"]
    assert step_until_it_ends(restored, 3600) == 1000 - 610


def test_without_faults_nothing_of_them_is_in_the_state() -> None:
    env = lanes(Recorder)
    env.reset()
    assert "faults" not in env.state_dict()


def test_closing_closes_every_lane() -> None:
    env = lanes(Recorder, 3)
    env.close()
    assert all(recorder.is_closed for recorder in env.envs)


def test_a_script_is_played_as_written() -> None:
    env = ScriptedEnv(0, [Episode(1, "both")])
    env.reset()
    assert env.step(0)[2:4] == (True, True)
