"""Native lanes are the lanes that Gymnasium's environments would be: seeds, groups, ranks, resets; and their state."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from quintain.envs.native.env import NativeEnv
from quintain.errors import EnvError, QuintainError
from quintain.testing import differences
from tests.envs.native.rivals import gymnasium_lanes, native

CARTPOLE = "CartPole-v1"


def play(env: NativeEnv, num_steps: int, seed: int = 0) -> np.ndarray:
    """Pushes at random, each lane its own way whichever lanes there are beside it, and returns all observations."""
    pushes = np.random.default_rng(seed).integers(0, 2, (num_steps, 16))[:, env.first_lane :][:, : env.num_lanes]
    return np.stack([env.step(torch.from_numpy(row.copy())).obs.copy() for row in pushes])


def test_lanes_of_a_rank_are_those_of_one_process() -> None:
    whole, second_half = native(CARTPOLE, 8), native(CARTPOLE, 4, first_lane=4)
    assert np.array_equal(whole.reset()[4:], second_half.reset())
    assert np.array_equal(play(whole, 120)[:, 4:], play(second_half, 120))


def test_groups_begin_alike_and_as_gymnasiums_do() -> None:
    mine, theirs = native(CARTPOLE, 6, group_size=3), gymnasium_lanes(CARTPOLE, 6, group_size=3)
    for _ in range(3):
        obs = mine.reset().copy()
        assert np.array_equal(obs, theirs.reset())
        assert len(np.unique(obs, axis=0)) == 2
        pushes = torch.from_numpy(np.random.default_rng(1).integers(0, 2, (40, 6)))
        for row in pushes:
            assert np.array_equal(mine.step(row).obs, theirs.step(row).obs)
    assert len(set(mine.episode.tolist())) > 1, "the lanes of a group should have played different numbers of episodes"


def test_resetting_some_lanes_leaves_the_others_alone() -> None:
    mine, theirs = native(CARTPOLE, 4), gymnasium_lanes(CARTPOLE, 4)
    mine.reset()
    theirs.reset()
    for env in (mine, theirs):
        env.step(torch.tensor([0, 1, 0, 1]))
    chosen = np.array([True, False, False, True])
    before = mine.obs.copy()
    after = mine.reset(chosen)
    assert np.array_equal(after, theirs.reset(chosen))
    assert (after == before).all(axis=1).tolist() == [False, True, True, False]
    assert mine.age.tolist() == [0, 1, 1, 0]


def test_lanes_dealt_anew_begin_episodes_that_nobody_played() -> None:
    mine, theirs = native(CARTPOLE, 2), gymnasium_lanes(CARTPOLE, 2)
    mine.reset()
    theirs.reset()
    played = [{"episode": np.array([3, 9])}, {"episode": np.array([4, 1])}]
    assert np.array_equal(mine.begin_anew(played), theirs.begin_anew(played))
    assert mine.episode.tolist() == [10, 10]


def test_a_time_limit_of_ones_own() -> None:
    env = native("Pendulum-v1", 2, max_episode_steps=3)
    env.reset()
    cuts = [env.step(torch.zeros(2, 1)).truncated.tolist() for _ in range(7)]
    assert cuts == [[step % 3 == 2] * 2 for step in range(7)]


def test_the_state_is_the_simulators_and_small() -> None:
    env = native(CARTPOLE, 3)
    env.reset()
    play(env, 60)
    saved = env.state_dict()
    # Position, speed, angle and angular speed as doubles; no actions to play again.
    assert {name: np.shape(rows) for name, rows in saved.items()} == {
        "state": (3, 4),
        "age": (3,),
        "episode": (3,),
        "parameters": (3, 10),
        "obs": (3, 4),
    }
    other = native(CARTPOLE, 3)
    other.load_state_dict(saved)
    assert not list(differences(env.state_dict(), other.state_dict()))
    assert np.array_equal(play(env, 200, seed=1), play(other, 200, seed=1))


def test_a_state_brings_the_parameters_that_were_in_force() -> None:
    env, other = native(CARTPOLE, 2), native(CARTPOLE, 2)
    env.reset()
    env.set_parameters({"gravity": [5.0, 20.0]})
    env.set_parameters({"length": 2.0}, lanes=[1])
    other.load_state_dict(env.state_dict())
    assert np.array_equal(play(env, 50), play(other, 50))
    unchanged = native(CARTPOLE, 2)
    unchanged.reset()
    assert not np.array_equal(play(unchanged, 50), play(native_again(env), 50))


def native_again(env: NativeEnv) -> NativeEnv:
    """Makes the same lanes at their first episode, with the parameters of another."""
    made = native(CARTPOLE, env.num_lanes)
    made.parameters[:] = env.parameters
    made.reset()
    return made


def test_parameters_of_some_lanes_leave_the_others_alone() -> None:
    changed, plain = native(CARTPOLE, 3), native(CARTPOLE, 3)
    changed.set_parameters({"force_mag": 3.0}, lanes=[1])
    for env in (changed, plain):
        env.reset()
    ours, reference = play(changed, 5), play(plain, 5)
    assert (ours == reference).all(axis=(0, 2)).tolist() == [True, False, True]


@pytest.mark.parametrize("choice", [-1, 2])
def test_a_choice_that_does_not_exist_is_a_bug_and_changes_nothing(choice: int) -> None:
    env = native(CARTPOLE, 2)
    env.reset()
    before = env.state_dict()
    with pytest.raises(QuintainError, match=f"chose action {choice} for lane 1, of Discrete") as refused:
        env.step(torch.tensor([0, choice]))
    assert refused.value.code == "E0101"
    assert not list(differences(before, env.state_dict()))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_an_action_that_is_not_finite_is_refused(number: float) -> None:
    env = native("Pendulum-v1", 2)
    env.reset()
    with pytest.raises(EnvError, match="not finite for lane 1") as refused:
        env.step(torch.tensor([[0.0], [number]]))
    assert refused.value.code == "E0512"


class Screen:
    """Stands in for Gymnasium's environment, whose pictures need a library that not everyone has."""

    def __init__(self, failing: bool = False) -> None:
        self.failing = failing
        self.is_closed = False

    @property
    def unwrapped(self) -> Screen:
        return self

    def render(self) -> np.ndarray:
        if self.failing:
            raise ImportError("pygame is not\ninstalled")
        return np.full((2, 3, 3), vars(self)["state"][0])

    def close(self) -> None:
        self.is_closed = True


def test_pictures_are_drawn_by_gymnasiums_environment_in_the_state_of_the_first_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen()
    monkeypatch.setattr(gymnasium, "make", lambda *_, **__: screen)
    env = native("Pendulum-v1", 2, kwargs={"max_torque": 1.5})
    env.reset()
    assert env.render().max() == env.state[0, 0]  # type: ignore[union-attr]
    assert vars(screen)["last_u"] is None
    env.step(torch.tensor([[0.5], [1.0]]))
    picture = env.render()
    assert picture is not None
    assert picture.shape == (2, 3, 3)
    assert picture.max() == env.state[0, 0]
    assert (vars(screen)["last_u"], vars(screen)["max_torque"]) == (0.5, 1.5)
    assert env.frames_per_second == 30.0
    env.close()
    assert screen.is_closed


def test_a_picture_that_cannot_be_drawn_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium, "make", lambda *_, **__: Screen(failing=True))
    with pytest.raises(EnvError, match="'CartPole-v1' cannot draw itself: pygame is not installed") as refused:
        native(CARTPOLE, 1).render()
    assert refused.value.code == "E0522"


def test_a_parameter_that_an_event_cannot_set_is_an_error_of_the_environment() -> None:
    env = native(CARTPOLE, 2)
    with pytest.raises(EnvError, match='unknown parameter "wind"') as refused:
        env.set_parameters({"wind": 1.0})
    assert refused.value.code == "E0521"
