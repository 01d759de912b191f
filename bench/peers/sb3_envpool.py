"""EnvPool as the vector environment that Stable-Baselines3 asks for."""

from __future__ import annotations

from typing import Any

import envpool
import numpy as np
from stable_baselines3.common.vec_env import VecEnv


class EnvPoolLanes(VecEnv):
    """Steps EnvPool's lanes; it resets them by itself, so the last observation of an episode is not known."""

    def __init__(self, env_id: str, num_envs: int, seed: int) -> None:
        self.pool = envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, num_threads=2, seed=seed)
        super().__init__(num_envs, self.pool.observation_space, self.pool.action_space)
        self.is_discrete = hasattr(self.pool.action_space, "n")
        self.actions: Any = None

    def reset(self) -> Any:
        return self.pool.reset()[0]

    def step_async(self, actions: Any) -> None:
        self.actions = actions.astype(np.int32) if self.is_discrete else actions.astype(np.float64)

    def step_wait(self) -> Any:
        obs, reward, terminated, truncated, _ = self.pool.step(self.actions)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for lane in np.flatnonzero(done):
            is_cut = bool(truncated[lane] and not terminated[lane])
            infos[lane] = {"terminal_observation": obs[lane], "TimeLimit.truncated": is_cut}
        return obs, reward, done, infos

    def close(self) -> None:
        self.pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs
