"""Vector environments with Dict observations, hybrid actions and masks mean the same in all three autoreset modes."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from quintain.core.rng import Rng
from quintain.data.env_values import from_env
from quintain.data.spec import flatten, leaves
from quintain.envs.gym.vector import VectorEnv
from quintain.errors import EnvError
from tests.envs.test_structured_lanes import SOURCES, some_action
from tests.structured import OBSERVATIONS, Structured

MODES = ("NextStep", "SameStep", "Disabled")


def vector(mode: str, num_lanes: int = 2, **arguments: Any) -> VectorEnv:
    made = SyncVectorEnv([partial(Structured, **arguments)] * num_lanes, autoreset_mode=AutoresetMode(mode))
    return VectorEnv("structured", made, Rng(0), encode_text=True)


def row(env: VectorEnv, value: Any, lane: int) -> dict[str, np.ndarray]:
    return {name: np.array(rows[lane]) for name, rows in flatten(env.spec.obs, value, "obs").items()}


def stored(env: VectorEnv, value: Any) -> dict[str, np.ndarray]:
    """Returns an observation of a single environment as the rollout would hold it."""
    flat = flatten(env.spec.obs, value, "obs")
    return {name: np.asarray(from_env(leaf, flat[name])) for name, leaf in leaves(env.spec.obs, "obs").items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_each_lane_sees_what_a_lone_environment_with_its_seed_sees(mode: str, obs: str) -> None:
    env, seed = vector(mode, obs=obs, action="hybrid dict"), Rng(0).seed_for("reset")
    alone = [Structured(obs=obs, action="hybrid dict") for _ in range(2)]
    seen = env.reset()
    for lane, one in enumerate(alone):
        assert_same(row(env, seen, lane), stored(env, one.reset(seed=seed + lane)[0]))
    num_ended = 0
    for step in range(25):
        action = some_action(env, step)
        result = env.step(action)
        for lane, one in enumerate(alone):
            if result.valid is not None and not result.valid[lane]:
                assert_same(row(env, result.obs, lane), stored(env, one.reset()[0]))
                continue
            of_lane = {"go": int(action["go"][lane]), "push": action["push"][lane].numpy(),
                       "turn": action["turn"][lane].numpy()}  # fmt: skip
            last, reward, terminated, truncated, _ = one.step(of_lane)
            assert result.reward[lane] == reward
            assert (result.terminated[lane], result.truncated[lane]) == (terminated, truncated)
            if terminated or truncated:
                num_ended += 1
                assert_same(row(env, result.final_obs, lane), stored(env, last))
                if mode != "NextStep":
                    last = one.reset()[0]
            assert_same(row(env, result.obs, lane), stored(env, last))
    assert num_ended >= 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", SOURCES)
def test_masks_are_those_of_what_is_acted_on_next(mode: str, source: str) -> None:
    env = vector(mode, 3, obs="dict", action="hybrid dict", masks=source)
    assert (env.mask_source, env.spec.mask_size) == (source, 8)
    assert "obs.action_mask" not in leaves(env.spec.obs, "obs")
    env.reset()
    was_invalid = 0
    for step in range(25):
        for lane, one in enumerate(env.env.envs):
            waits = env.ended[lane]  # its next step only resets it, so anything may be chosen
            np.testing.assert_array_equal(env.action_mask()[lane], np.ones(8) if waits else one.mask())
        result = env.step(some_action(env, step))
        was_invalid += 0 if result.valid is None else int((~result.valid).sum())
        assert result.action_mask is env.action_mask()
    assert (was_invalid > 0) == (mode == "NextStep")


@pytest.mark.parametrize("mode", MODES)
def test_masks_come_back_with_the_state(mode: str) -> None:
    env, restored = (vector(mode, obs="dict", masks="info") for _ in range(2))
    env.reset()
    env.step(some_action(env, 0))
    # What a vector environment of Python objects holds cannot be put back, so its lanes start anew, with their masks.
    restored.load_state_dict(env.state_dict())
    assert restored.exactness.startswith("statistical")
    for lane, one in enumerate(restored.env.envs):
        np.testing.assert_array_equal(restored.action_mask()[lane], one.mask())


class ArrayEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Two lanes in arrays, with masks in info and last observations of all lanes as one dict of arrays."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space = gymnasium.spaces.Dict({"x": gymnasium.spaces.Box(-9, 9, (1,), np.float32)})
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.age = np.zeros(2, np.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.age[:] = 0
        return self._obs(), self._info()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.age += [1, 2]
        last, ended = self._obs(), self.age >= 4
        self.age[ended] = 0
        return self._obs(), np.ones(2), ended, np.zeros(2, np.bool_), {"final_obs": last, **self._info()}

    def _obs(self) -> Any:
        return {"x": self.age[:, None].astype(np.float32)}

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.stack([self.age % 2 == 0, np.ones(2, np.bool_)], axis=1)}


def test_a_vector_environment_of_arrays_may_keep_last_observations_by_name_and_comes_back_exactly() -> None:
    env, restored = (VectorEnv("arrays", ArrayEnv(), Rng(0)) for _ in range(2))
    env.reset()
    action = torch.ones(2, dtype=torch.int64)
    env.step(action)
    result = env.step(action)
    assert result.terminated.tolist() == [False, True]
    assert result.obs["x"].tolist() == [[2.0], [0.0]]
    assert result.final_obs["x"][1].tolist() == [4.0]
    env.step(action)
    assert env.action_mask().tolist() == [[False, True], [True, True]]
    restored.load_state_dict(env.state_dict())
    assert restored.exactness == "exact"
    assert restored.action_mask().tolist() == env.action_mask().tolist()
    np.testing.assert_array_equal(restored.step(action).obs["x"], env.step(action).obs["x"])


def test_a_mask_for_some_lanes_only_is_refused() -> None:
    env = vector("SameStep", obs="dict", masks="info")
    env.reset()
    env.env.envs[1].info = dict
    with pytest.raises(EnvError, match="for some lanes only"):
        env.step(some_action(env, 0))


def test_an_observation_with_a_choice_that_was_not_declared_is_refused() -> None:
    env = vector("SameStep", obs="choice")
    env.reset()
    env.env.envs[0].observe = lambda: 99
    with pytest.raises(EnvError, match="did not declare; declared Discrete"):
        env.step(some_action(env, 0))
