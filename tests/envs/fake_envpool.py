"""What EnvPool's Gymnasium interface does, as far as an adapter can see: an end, then a step that only resets.

Rows may come in any order, with `info["env_id"]` saying whose they are; seeds are given when a pool is made.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class FakePool:
    """Counts steps: an observation is (lane, episode, step of the episode)."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.rng = np.random.default_rng(config["seed"])
        num_envs = config["num_envs"]
        self.limit = config.get("max_episode_steps", 4)
        self.state = np.zeros((num_envs, 3), np.float32)
        self.start = self.rng.uniform(size=num_envs).astype(np.float32)
        self.is_over = np.zeros(num_envs, np.bool_)
        self.is_closed = False

    def reset(self, env_id: Any = None) -> tuple[Any, dict[str, Any]]:
        lanes = np.arange(len(self.state)) if env_id is None else np.asarray(env_id)
        self.state[lanes] = np.stack([lanes + self.start[lanes], self.state[lanes, 1], 0 * lanes], axis=1)
        self.is_over[lanes] = False
        return self.state[lanes].copy(), {"env_id": lanes}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert action.shape == (len(self.state),)
        resets, self.is_over = self.is_over, np.zeros(len(self.state), np.bool_)
        self.state[resets, 1] += 1
        self.state[resets, 2] = 0
        self.state[~resets, 2] += 1
        reward = np.where(resets, 0.0, 1.0).astype(np.float32)
        # Even lanes are terminated when time is up, odd ones are truncated.
        self.is_over = ~resets & (self.state[:, 2] >= self.limit)
        is_even = np.arange(len(self.state)) % 2 == 0
        order = self.rng.permutation(len(self.state))
        values = (self.state.copy(), reward, self.is_over & is_even, self.is_over & ~is_even)
        return *(value[order] for value in values), {"env_id": order}  # type: ignore[return-value]

    def close(self) -> None:
        self.is_closed = True


def make(task_id: str, *, env_type: str, num_envs: int, batch_size: int, seed: int, **options: Any) -> FakePool:
    assert (env_type, batch_size) == ("gymnasium", num_envs)
    if task_id == "Missing-v0":
        raise ValueError("not registered")
    return FakePool({"num_envs": num_envs, "seed": seed, **options})
