"""Parameters change the task in the lanes that are meant, and a resumed episode has had the same changes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from quintain.core.rng import Rng
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.gym.vector import VectorEnv
from quintain.errors import EnvError
from quintain.services.checkpoints.state_files import decode, encode

PUSH = torch.tensor([1, 0])


def cartpole() -> LaneEnv:
    env = LaneEnv("CartPole-v1", [lambda: gymnasium.make("CartPole-v1", max_episode_steps=30)] * 2, Rng(4))
    env.reset()
    return env


def through_files(env: LaneEnv) -> Any:
    return decode(encode({"training": env.state_dict(), "records": {}}))["training"]


def play(env: LaneEnv, num_steps: int) -> np.ndarray:
    return np.stack([np.array(env.step(PUSH).obs) for _ in range(num_steps)])


def test_a_parameter_is_set_in_all_lanes_or_in_those_that_are_meant() -> None:
    env = cartpole()
    env.set_parameters({"gravity": 5.0})
    env.set_parameters({"gravity": 7, "length": 0.25}, [1])
    inner = [each.unwrapped for each in env.envs]
    assert [each.gravity for each in inner] == [5.0, 7.0]
    assert [each.length for each in inner] == [0.5, 0.25]


def test_an_unknown_parameter_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(EnvError, match=r"no parameter 'gravitas'; it has .*gravity.*length") as failed:
        cartpole().set_parameters({"gravitas": 1.0})
    assert failed.value.code == "E0521"


def test_an_environment_may_have_a_method_of_its_own_for_it() -> None:
    class Own(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros(1, np.float32), {}

        def set_parameters(self, values: dict[str, float]) -> None:
            self.given = values

    env = LaneEnv("own", [Own, Own], Rng(0))
    env.set_parameters({"anything": 2.0}, [1])
    assert env.envs[1].given == {"anything": 2.0}
    assert not hasattr(env.envs[0], "given")


def test_an_episode_whose_parameters_changed_in_the_middle_is_rebuilt_exactly() -> None:
    env = cartpole()
    env.set_parameters({"gravity": 12.0})  # before the first step
    play(env, 4)
    env.set_parameters({"force_mag": 3.0}, [0])
    play(env, 3)
    env.set_parameters({"length": 0.7})  # after the last step, before the next
    state = through_files(env)
    other = LaneEnv("CartPole-v1", [lambda: gymnasium.make("CartPole-v1", max_episode_steps=30)] * 2, Rng(4))
    other.load_state_dict(state)
    assert other.exactness == "exact"
    np.testing.assert_array_equal(play(env, 20), play(other, 20))
    assert [each.unwrapped.length for each in other.envs] == [0.7, 0.7]


def test_parameters_of_earlier_episodes_stay_in_force_after_a_resume() -> None:
    env = cartpole()
    env.set_parameters({"gravity": 12.0})
    play(env, 31)  # at least one episode has ended since, so the change is no event of this one
    assert env.parameter_log.before == [{"gravity": 12.0}] * 2
    assert env.parameter_log.changes == [[], []]
    state = through_files(env)
    other = LaneEnv("CartPole-v1", [lambda: gymnasium.make("CartPole-v1", max_episode_steps=30)] * 2, Rng(4))
    other.load_state_dict(state)
    assert other.exactness == "exact"
    assert [each.unwrapped.gravity for each in other.envs] == [12.0, 12.0]
    np.testing.assert_array_equal(play(env, 10), play(other, 10))


def test_going_back_in_the_same_process_takes_parameters_back_too() -> None:
    env = cartpole()
    play(env, 3)
    before = through_files(env)
    expected = play(env, 5)
    env.set_parameters({"gravity": 1.0, "length": 2.0})
    play(env, 2)
    env.load_state_dict(before)
    assert env.envs[0].unwrapped.gravity == 9.8
    np.testing.assert_array_equal(play(env, 5), expected)


def test_a_vector_environment_has_one_set_of_parameters_for_all_lanes() -> None:
    env = VectorEnv(
        "CartPole-v1", gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"), Rng(0)
    )
    env.set_parameters({"gravity": 3.0})
    assert env.env.unwrapped.gravity == 3.0
    with pytest.raises(EnvError, match="one number for all lanes"):
        env.set_parameters({"gravity": 3.0}, [0])
