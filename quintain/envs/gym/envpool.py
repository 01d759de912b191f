"""EnvPool's environments, through their Gymnasium interface; imported on first use only.

A pool resets at the step after an end: that step ignores the action and returns the next episode's first observation,
so the last observation of an episode is an ordinary one. Its seed is fixed at creation and its state cannot be read, so
a resumed run continues with new episodes, and reports it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from quintain.envs.base import Env
from quintain.envs.gym.vector import VectorEnv
from quintain.envs.settings import EnvPoolSettings
from quintain.errors import EnvError, SettingsError

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.envs.gym.protocols import Returned, Space
    from quintain.typing import Action, Array, Info, Keywords, Observation, Tree

_WHY = "EnvPool keeps the state of its environments to itself, so a resume starts new episodes"


def envpool_env(settings: EnvPoolSettings, num_lanes: int, rng: Rng) -> Env:
    """Makes the environment of `{type: envpool, id: ...}`."""
    try:
        envpool = importlib.import_module("envpool")
    except ImportError as error:
        raise SettingsError(
            f"env type envpool needs the package envpool ({error}). Install it with: pip install envpool", code="E0208"
        ) from error
    options: Keywords = dict(settings.kwargs)
    if settings.num_threads is not None:
        options["num_threads"] = settings.num_threads
    if settings.max_episode_steps is not None:
        options["max_episode_steps"] = settings.max_episode_steps
    seed = rng.seed_for("reset")
    try:
        # All lanes in every batch: an asynchronous pool would hand out whoever is ready.
        made = envpool.make(
            settings.id, env_type="gymnasium", num_envs=num_lanes, batch_size=num_lanes, seed=seed, **options
        )
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise EnvError(f"env {settings.id!r} cannot be created by EnvPool: {reason}", code="E0505") from error
    return PoolEnv(settings.id, made, rng)


class RawPool(Protocol):
    """The interface of EnvPool's pools; `reset` without ids resets all lanes."""

    config: Info
    observation_space: Space
    action_space: Space

    def reset(self, env_id: Array | None = None, /) -> tuple[Observation, Info]: ...
    def step(self, action: Action, /) -> tuple[Observation, Tree, Tree, Tree, Info]: ...
    def render(self) -> Returned: ...


class PoolEnv(VectorEnv):
    """Steps the lanes of one pool."""

    def __init__(self, name: str, pool: RawPool, rng: Rng) -> None:
        super().__init__(name, Pool(pool), rng)
        self.why_statistical = _WHY


class Pool:
    """Adapts a pool to a vector environment: rows in the order of lanes, regardless of the order of arrival."""

    def __init__(self, pool: RawPool) -> None:
        self.pool = pool
        self.num_envs = int(pool.config["num_envs"])
        self.single_observation_space = pool.observation_space
        self.single_action_space = pool.action_space
        self.metadata = {"autoreset_mode": "NextStep"}
        self.last_obs: Observation = None

    def reset(self, *, seed: int | None = None, options: Keywords | None = None) -> tuple[Observation, Info]:
        """Resets the masked lanes, or all; the seed was fixed when the pool was made."""
        mask = (options or {}).get("reset_mask")
        if mask is None:
            obs, info = self.pool.reset()
            self.last_obs = _in_order(obs, info)
        else:
            obs, info = self.pool.reset(np.flatnonzero(mask).astype(np.int32))
            self.last_obs = _replaced(self.last_obs, _in_order(obs, info), np.flatnonzero(mask))
        return self.last_obs, {}

    def step(self, action: Action) -> tuple[Observation, Tree, Tree, Tree, Info]:
        """Steps every lane."""
        obs, reward, terminated, truncated, info = self.pool.step(action)
        self.last_obs = _in_order(obs, info)
        reward, terminated, truncated = (_in_order(values, info) for values in (reward, terminated, truncated))
        return self.last_obs, reward, terminated, truncated, {}

    @property
    def unwrapped(self) -> RawPool:
        return self.pool

    def render(self) -> Returned:
        return self.pool.render()

    def close(self) -> None:
        if hasattr(self.pool, "close"):
            self.pool.close()


def _in_order(values: Tree, info: Info) -> Tree:
    lanes = np.asarray(info["env_id"])
    if (lanes[:-1] < lanes[1:]).all():
        return values
    return _taken(values, np.argsort(lanes, kind="stable"))


def _taken(values: Tree, order: Array) -> Tree:
    if isinstance(values, Mapping):
        return {name: _taken(value, order) for name, value in values.items()}
    return np.asarray(values)[order]


def _replaced(old: Tree, new: Tree, lanes: Array) -> Tree:
    if isinstance(old, Mapping):
        return {name: _replaced(value, new[name], lanes) for name, value in old.items()}
    merged = np.array(old)
    merged[lanes] = new
    return merged
