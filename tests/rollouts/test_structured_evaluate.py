"""Evaluation with masks and with memory: what is played is what `predict` plays, episode by episode."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from quintain.core.rng import Rng
from quintain.envs.base import Env
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.gym.vector import VectorEnv
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings, MemorySettings
from quintain.rollouts.evaluate import Evaluator
from tests.playing import played
from tests.scripted import MODES, never
from tests.structured import Structured


def make_env(mode: str, num_lanes: int = 2, **arguments: Any) -> Env:
    factories = [partial(Structured, **arguments)] * num_lanes
    if mode == "lanes":
        return LaneEnv("structured", factories, Rng(5))
    return VectorEnv("structured", SyncVectorEnv(factories, autoreset_mode=AutoresetMode(mode)), Rng(5))


def make_policy(env: Env, **settings: Any) -> ActorCritic:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,), image_features=8, **settings), env.spec, Rng(1))
    policy.actor[-1].weight.data.mul_(100)
    return policy


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("masks", ["info", "method", "obs"])
def test_forbidden_actions_are_not_played(mode: str, masks: str, deterministic: bool) -> None:
    env = make_env(mode, obs="dict", action="hybrid dict", masks=masks)
    # The environment asserts that each action is allowed.
    results = played(Evaluator(env, 5, Rng(0)), make_policy(env), deterministic=deterministic, should_stop=never)
    assert set(results.lengths) <= {5, 7}


@pytest.mark.parametrize("masks", ["", "info"])
@pytest.mark.parametrize("cell", ["", "lstm", "gru"])
@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_played_as_predict_plays_them(mode: str, cell: str, masks: str) -> None:
    env = make_env(mode, num_lanes=1, action="hybrid dict", masks=masks)
    policy = make_policy(env, **({"memory": MemorySettings(cell=cell, size=6)} if cell else {}))
    results = played(Evaluator(env, 4, Rng(0)), policy, deterministic=True, should_stop=never)
    # The same episodes once more, with a lone environment and a state that starts as None in each.
    lone, seed = Structured(action="hybrid dict", masks=masks), Rng(5).seed_for("reset")
    returns = []
    for episode in range(4):
        if mode == "lanes":
            obs, _ = lone.reset(seed=Rng(5).seed_for("reset", 0, episode, 0))
        else:
            obs, _ = lone.reset(seed=seed) if episode == 0 else lone.reset()
        state, total, ended = None, 0.0, False
        while not ended:
            action, state = policy.predict(obs, state, action_mask=lone.mask() if masks else None)
            obs, reward, terminated, truncated, _ = lone.step(action)
            total, ended = total + reward, terminated or truncated
        returns.append(total)
    assert results.returns.tolist() == pytest.approx(returns, abs=1e-4)
    assert len({round(value, 3) for value in returns}) > 1
