from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from quintain.core.rng import Rng
from quintain.envs.gym.envpool import envpool_env
from quintain.envs.settings import EnvPoolSettings
from quintain.errors import EnvError, SettingsError
from tests.envs import fake_envpool


@pytest.fixture
def envpool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", fake_envpool)


@pytest.mark.usefixtures("envpool")
def test_the_step_after_an_end_only_resets_and_rows_are_in_the_order_of_lanes() -> None:
    env = envpool_env(EnvPoolSettings(id="Fake-v0", max_episode_steps=3), 3, Rng(0))
    first = np.array(env.reset())
    assert np.floor(first[:, 0]).tolist() == [0, 1, 2]
    steps = [env.step(torch.zeros(3, dtype=torch.int64)) for _ in range(3)]
    results = [(np.array(r.obs), np.array(r.valid), np.array(r.terminated), np.array(r.truncated)) for r in steps[2:]]
    obs, valid, terminated, truncated = results[0]
    # Lanes 0 and 2 are terminated and lane 1 is truncated at the third step, whose observation is their last.
    assert obs[:, 2].tolist() == [3, 3, 3]
    assert np.array(steps[2].final_obs)[:, 2].tolist() == [3, 3, 3]
    assert valid.tolist() == [True, True, True]
    assert terminated.tolist() == [True, False, True]
    assert truncated.tolist() == [False, True, False]
    after = env.step(torch.zeros(3, dtype=torch.int64))
    assert np.array(after.valid).tolist() == [False, False, False]
    assert np.array(after.obs)[:, 1:].tolist() == [[1, 0]] * 3
    assert np.array(after.reward).tolist() == [0.0, 0.0, 0.0]
    assert np.floor(np.array(after.obs)[:, 0]).tolist() == [0, 1, 2]


@pytest.mark.usefixtures("envpool")
def test_a_pool_says_that_it_cannot_be_restored_and_starts_new_episodes() -> None:
    env, other = (envpool_env(EnvPoolSettings(id="Fake-v0"), 2, Rng(seed)) for seed in (0, 0))
    assert env.exactness == (
        "statistical: EnvPool keeps the state of its environments to itself, so a resume starts new episodes"
    )
    env.reset()
    env.step(torch.zeros(2, dtype=torch.int64))
    other.load_state_dict(env.state_dict())
    assert np.array(other.step(torch.zeros(2, dtype=torch.int64)).obs)[:, 2].tolist() == [1, 1]


@pytest.mark.usefixtures("envpool")
def test_some_lanes_may_be_reset_alone() -> None:
    env = envpool_env(EnvPoolSettings(id="Fake-v0"), 3, Rng(0))
    env.reset()
    env.step(torch.zeros(3, dtype=torch.int64))
    assert np.array(env.reset(np.array([False, True, False])))[:, 2].tolist() == [1, 0, 1]


@pytest.mark.usefixtures("envpool")
def test_the_seed_decides_and_settings_are_passed_on() -> None:
    def first(seed: int) -> list[float]:
        return np.array(envpool_env(EnvPoolSettings(id="Fake-v0"), 2, Rng(seed)).reset())[:, 0].tolist()

    assert first(1) == first(1) != first(2)
    settings = EnvPoolSettings(id="Fake-v0", num_threads=3, kwargs={"frame_skip": 2})
    made = envpool_env(settings, 2, Rng(0))
    config = made.env.pool.config  # type: ignore[attr-defined]
    assert (config["num_threads"], config["frame_skip"]) == (3, 2)
    made.close()
    assert made.env.pool.is_closed  # type: ignore[attr-defined]
    with pytest.raises(EnvError, match="cannot be created by EnvPool: ValueError: not registered"):
        envpool_env(EnvPoolSettings(id="Missing-v0"), 2, Rng(0))


def test_without_the_package_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(SettingsError, match="pip install envpool"):
        envpool_env(EnvPoolSettings(id="Pong-v5"), 2, Rng(0))
