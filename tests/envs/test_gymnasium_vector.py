"""Vector environments mean the same in all three autoreset modes, and come back exactly or say that they do not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from quintain.core.rng import Rng
from quintain.envs.gym.vector import VectorEnv
from quintain.errors import EnvError
from quintain.services.checkpoints.state_files import decode, encode
from tests.scripted import Episode, ScriptedVectorEnv, scripted_env

VECTOR_MODES = ("NextStep", "SameStep", "Disabled")
SCRIPT = [[Episode(2, "terminated"), Episode(1, "truncated")], [Episode(3, "truncated")]]
STILL = torch.zeros(2, dtype=torch.int64)


def native_cartpole(num_lanes: int = 3) -> VectorEnv:
    env = gymnasium.make_vec("CartPole-v1", num_lanes, vectorization_mode="vector_entry_point")
    return VectorEnv("CartPole-v1", env, Rng(0))


def sync_cartpole(mode: str, num_lanes: int = 2, max_episode_steps: int = 12) -> VectorEnv:
    make = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=max_episode_steps)] * num_lanes
    return VectorEnv("CartPole-v1", SyncVectorEnv(make, autoreset_mode=AutoresetMode(mode)), Rng(0))


def snapshot(result: Any) -> tuple[Any, ...]:
    """Copies a step's arrays, with zeros in the rows of final_obs that mean nothing."""
    copied = [None if part is None else np.array(part) for part in result[:6]]
    copied[4][~(copied[2] | copied[3])] = 0
    return tuple(copied)


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_an_ended_lane_goes_on_with_the_next_episode_in_the_same_step(mode: str) -> None:
    env = scripted_env(SCRIPT, mode)
    assert env.reset().tolist() == [[0, 0, 0], [1, 0, 0]]
    first = snapshot(env.step(STILL))
    assert first[0].tolist() == [[0, 0, 1], [1, 0, 1]]
    second = snapshot(env.step(STILL))
    assert second[0].tolist() == [[0, 1, 0], [1, 0, 2]]
    assert second[2].tolist() == [True, False]
    assert second[3].tolist() == [False, False]
    assert second[4][0].tolist() == [0, 0, 2]
    third = snapshot(env.step(STILL))
    # Lane 0's second episode has one step and is cut; lane 1's first has three and is cut as well.
    assert third[0].tolist() == [[0, 2, 0], [1, 1, 0]]
    assert third[2].tolist() == [False, False]
    assert third[3].tolist() == [True, True]
    assert third[4].tolist() == [[0, 1, 1], [1, 0, 3]]
    assert first[5] is second[5] is third[5] is None


def test_next_step_autoreset_marks_the_step_that_only_resets() -> None:
    env = scripted_env(SCRIPT, "NextStep")
    env.reset()
    results = [snapshot(env.step(STILL)) for _ in range(5)]
    # Lane 0: two steps, reset, one step, reset. Lane 1: three steps, reset, one step.
    assert [result[5].tolist() for result in results] == [
        [True, True],
        [True, True],
        [False, True],
        [True, False],
        [False, True],
    ]
    assert results[1][4][0].tolist() == [0, 0, 2]
    assert results[1][0][0].tolist() == [0, 0, 2]
    assert results[2][0][0].tolist() == [0, 1, 0]
    assert results[2][1].tolist() == [0.0, 3.0]  # nothing for the reset; 1 + 1 + 0.5 * 2 - 0 for lane 1
    assert results[3][4][0].tolist() == [0, 1, 1]


def test_a_masked_reset_leaves_other_lanes_where_they_are() -> None:
    env = scripted_env([[Episode(1, "terminated")], [Episode(9, "terminated")]], "NextStep")
    env.reset()
    env.step(STILL)  # lane 0 ended and waits for its reset
    assert env.reset(np.array([False, True])).tolist() == [[0, 0, 1], [1, 1, 0]]
    result = env.step(STILL)
    assert result.valid.tolist() == [False, True]


def test_an_environment_that_does_not_declare_its_autoreset_is_refused() -> None:
    for metadata in ({}, None, {"autoreset_mode": "sometimes"}):
        env = ScriptedVectorEnv(SCRIPT, "SameStep")
        env.metadata = metadata  # type: ignore[assignment]
        with pytest.raises(EnvError, match=r"does not say how it resets.*NEXT_STEP, SAME_STEP or DISABLED") as refused:
            VectorEnv("mine", env, Rng(0))
        assert refused.value.code == "E0514"


def test_a_mode_may_be_declared_by_its_name() -> None:
    env = ScriptedVectorEnv(SCRIPT, "SameStep")
    env.metadata = {"autoreset_mode": "SameStep"}  # type: ignore[dict-item]
    assert VectorEnv("mine", env, Rng(0)).autoreset == "SameStep"


def test_choices_start_where_the_environment_starts_them() -> None:
    given = []

    class Offset(ScriptedVectorEnv):
        single_action_space = gymnasium.spaces.Discrete(2, start=3)

        def step(self, actions: Any) -> Any:
            given.append(actions.tolist())
            return super().step(actions)

    env = VectorEnv("mine", Offset(SCRIPT, "SameStep"), Rng(0))
    env.reset()
    env.step(torch.tensor([0, 1]))
    assert given == [[3, 4]]


@pytest.mark.parametrize("mode", VECTOR_MODES)
def test_gymnasiums_own_vector_environment_hands_over_true_ends(mode: str) -> None:
    """Each lane must see what a lone CartPole with the same seed sees, whatever the mode."""
    env, seed = sync_cartpole(mode), Rng(0).seed_for("reset")
    obs = np.array(env.reset())
    alone = [gymnasium.make("CartPole-v1", max_episode_steps=12) for _ in range(2)]
    expected = [one.reset(seed=seed + lane)[0] for lane, one in enumerate(alone)]
    np.testing.assert_array_equal(obs, expected)
    num_ended = 0
    for action in np.random.default_rng(1).integers(0, 2, (60, 2)):
        result = env.step(torch.from_numpy(action))
        for lane, one in enumerate(alone):
            if result.valid is not None and not result.valid[lane]:
                np.testing.assert_array_equal(result.obs[lane], one.reset()[0])
                assert result.reward[lane] == 0
                continue
            step, reward, terminated, truncated, _ = one.step(int(action[lane]))
            assert result.reward[lane] == reward
            assert (result.terminated[lane], result.truncated[lane]) == (terminated, truncated)
            if terminated or truncated:
                num_ended += 1
                np.testing.assert_array_equal(result.final_obs[lane], step)
                if mode != "NextStep":
                    step = one.reset()[0]
            np.testing.assert_array_equal(result.obs[lane], step)
    assert num_ended >= 6


@pytest.mark.parametrize("num_steps", [0, 1, 20, 60])
def test_the_native_cartpole_comes_back_exactly(num_steps: int) -> None:
    env, restored = native_cartpole(), native_cartpole()
    env.reset()
    actions = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (num_steps + 80, 3)))
    for action in actions[:num_steps]:
        env.step(action)
    restored.reset()  # a fresh run resets before it is restored
    restored.load_state_dict(env.state_dict())
    assert env.exactness == restored.exactness == "exact"
    num_ended = 0
    for action in actions[num_steps:]:
        ours, theirs = snapshot(restored.step(action)), snapshot(env.step(action))
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, other)
        num_ended += int((theirs[2] | theirs[3]).sum())
    assert num_ended > 3


@pytest.mark.parametrize("mode", VECTOR_MODES)
@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 4])
def test_a_vector_environment_of_arrays_comes_back_exactly(mode: str, num_steps: int) -> None:
    env, restored = scripted_env(SCRIPT, mode), scripted_env(SCRIPT, mode)
    env.reset()
    for _ in range(num_steps):
        env.step(STILL)
    restored.load_state_dict(env.state_dict())
    assert restored.exactness == "exact"
    for _ in range(6):
        for mine, other in zip(snapshot(restored.step(STILL)), snapshot(env.step(STILL)), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_restoring_does_not_tie_two_environments_together() -> None:
    env, restored = native_cartpole(), native_cartpole()
    env.reset()
    saved = env.state_dict()
    restored.load_state_dict(saved)
    before = env.env.state.copy()
    restored.step(torch.zeros(3, dtype=torch.int64))
    np.testing.assert_array_equal(env.env.state, before)
    np.testing.assert_array_equal(saved["layers"][0]["state"], before)


@pytest.mark.parametrize("mode", VECTOR_MODES)
def test_an_environment_that_cannot_be_saved_says_so_and_starts_anew(mode: str) -> None:
    env, restored = sync_cartpole(mode), sync_cartpole(mode)
    assert env.exactness.startswith("statistical: SyncVectorEnv.")
    start = np.array(env.reset())
    for _ in range(5):
        env.step(STILL)
    restored.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(restored.obs["obs"], start)
    restored.step(STILL)


@pytest.mark.parametrize(
    "hidden",
    [SimpleNamespace(x=0), [0, 0], {"x": 0}, {1, 2}, ([0], 1), torch.zeros(2), np.array([None, 1], object)],
    ids=["object", "list", "dict", "set", "list_in_tuple", "tensor", "object_array"],
)
def test_state_in_anything_but_arrays_and_numbers_is_never_called_exact(hidden: Any) -> None:
    env = ScriptedVectorEnv(SCRIPT, "SameStep")
    env.hidden = hidden  # type: ignore[attr-defined]
    assert VectorEnv("mine", env, Rng(0)).exactness == "statistical: ScriptedVectorEnv.hidden cannot be saved"


def test_the_state_of_wrappers_is_state_too() -> None:
    class Counts(gymnasium.vector.VectorWrapper[Any, Any, Any, Any]):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.count = 0

        def step(self, actions: Any) -> Any:
            self.count += 1
            return super().step(actions)

    env, restored = (VectorEnv("mine", Counts(ScriptedVectorEnv(SCRIPT, "NextStep")), Rng(0)) for _ in range(2))
    env.reset()
    env.step(STILL)
    env.step(STILL)
    restored.load_state_dict(env.state_dict())
    assert env.exactness == "exact"
    assert restored.env.count == 2
    np.testing.assert_array_equal(restored.env.env.state, env.env.env.state)


def test_the_first_reset_is_seeded_and_later_ones_go_on() -> None:
    one, other = native_cartpole(), native_cartpole()
    first = np.array(one.reset())
    np.testing.assert_array_equal(first, other.reset())
    assert not np.array_equal(first, one.reset())


def test_numbers_of_numpy_keep_their_precision_over_a_file() -> None:
    env, restored = (ScriptedVectorEnv(SCRIPT, "NextStep") for _ in range(2))
    env.friction, restored.friction = np.float32(0.1), np.float32(0.2)  # type: ignore[attr-defined]
    state = decode(encode({"training": VectorEnv("mine", env, Rng(0)).state_dict(), "records": {}}))["training"]
    VectorEnv("mine", restored, Rng(0)).load_state_dict(state)
    assert restored.friction == np.float32(0.1)  # type: ignore[attr-defined]
    assert type(restored.friction) is np.float32  # type: ignore[attr-defined]


class Twisted(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Returns ends and observations as they were given."""

    metadata: ClassVar = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, obs: Any, terminated: Any) -> None:
        self.given = obs, terminated

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        obs, terminated = self.given
        return obs, np.zeros(2), terminated, np.zeros(2, np.bool_), {}


GOOD = np.zeros((2, 1), np.float32)


@pytest.mark.parametrize(
    ("obs", "terminated", "said"),
    [
        (GOOD, np.array(["false", "false"]), r"terminated as <U5 of shape \(2,\), expected True or False"),
        (GOOD, np.zeros((2, 1), np.bool_), r"terminated as bool of shape \(2, 1\), expected True or False"),
        (GOOD, False, r"terminated as bool of shape \(\), expected True or False"),
        (GOOD.astype(object), np.zeros(2, np.bool_), "obs of dtype object, which holds no numbers"),
    ],
)
def test_what_is_no_truth_value_or_number_is_refused(obs: Any, terminated: Any, said: str) -> None:
    env = VectorEnv("twisted", Twisted(obs, terminated), Rng(0))
    env.reset()
    with pytest.raises(EnvError, match=said) as failed:
        env.step(torch.zeros(2, dtype=torch.int64))
    assert failed.value.code == "E0511"


def test_whole_numbers_stand_for_truth_values() -> None:
    env = VectorEnv("twisted", Twisted(GOOD, np.zeros(2, np.int64)), Rng(0))
    env.reset()
    assert env.step(torch.zeros(2, dtype=torch.int64)).terminated.dtype == np.bool_
