"""Every way to name a Gymnasium environment: an id, `module:Name`, a class, a factory, an instance."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium

from quintain.envs.base import Env
from quintain.envs.gymnasium_lanes import EnvFactory, LaneEnv
from quintain.envs.gymnasium_vector import VectorEnv
from quintain.envs.settings import GymSettings
from quintain.errors import EnvError, SettingsError
from quintain.registry import import_part

if TYPE_CHECKING:
    from quintain.rng import Rng


def gym_env(settings: GymSettings, num_lanes: int, rng: Rng, first_lane: int = 0) -> Env:
    """Makes the environment that `{type: gym, id: ...}` names, or the lanes of it that begin at `first_lane`."""
    encode_text = settings.text_observations == "encode"
    if settings.vectorization == "native":
        vector = _make_vector(settings, num_lanes)
        return VectorEnv(settings.id, vector, rng, encode_text=encode_text, first_lane=first_lane)
    factories = [_factory(settings)] * num_lanes
    return LaneEnv(
        settings.id, factories, rng, group_size=settings.group_size, encode_text=encode_text, first_lane=first_lane
    )


def env_from_object(
    slot: Any, num_lanes: int, rng: Rng, *, group_size: int = 1, encode_text: bool = False, first_lane: int = 0
) -> Env:
    """Makes an environment from what a Python user passed: a class, a factory, or an instance."""
    name = getattr(slot, "__name__", type(slot).__name__)
    if isinstance(slot, gymnasium.vector.VectorEnv):
        return VectorEnv(name, slot, rng, encode_text=encode_text, first_lane=first_lane)
    if isinstance(slot, gymnasium.Env):
        return LaneEnv(name, [lambda: slot], rng, encode_text=encode_text, first_lane=first_lane)
    if callable(slot):
        factories = [partial(_made_alone, name, slot)] * num_lanes
        return LaneEnv(name, factories, rng, group_size=group_size, encode_text=encode_text, first_lane=first_lane)
    raise SettingsError(
        f"env slot got a {type(slot).__name__}; pass a Gymnasium id, environment, vector environment, class or factory"
    )


def _made_alone(name: str, factory: EnvFactory) -> Any:
    env = factory()
    if isinstance(env, gymnasium.vector.VectorEnv):
        env.close()
        raise SettingsError(
            f"env factory {name!r} made a vector environment; a factory makes one lane. Pass what it makes"
        )
    return env


def _factory(settings: GymSettings) -> EnvFactory:
    if ":" in settings.id:
        return partial(_checked_instance, settings)
    require_registered(settings.id)
    limit = {} if settings.max_episode_steps is None else {"max_episode_steps": settings.max_episode_steps}
    # Our own checks run on every step; Gymnasium's checker would cost as much as a small environment.
    return partial(gymnasium.make, settings.id, disable_env_checker=True, **limit, **settings.kwargs)


def _checked_instance(settings: GymSettings) -> Any:
    """Makes one environment from user code, and lets a time limit apply to it as to a registered one."""
    env = import_part("env", settings.id)(**settings.kwargs)
    if isinstance(env, gymnasium.Env) and settings.max_episode_steps is not None:
        return gymnasium.wrappers.TimeLimit(env, settings.max_episode_steps)
    return env


def _make_vector(settings: GymSettings, num_lanes: int) -> Any:
    require_registered(settings.id)
    if gymnasium.spec(settings.id).vector_entry_point is None:
        raise SettingsError(
            f"env {settings.id!r} has no vector entry point of its own, so vectorization: native cannot be used. "
            f"Set vectorization: lanes"
        )
    limit = {} if settings.max_episode_steps is None else {"max_episode_steps": settings.max_episode_steps}
    options: dict[str, Any] = {**limit, **settings.kwargs}
    try:
        return gymnasium.make_vec(settings.id, num_lanes, vectorization_mode="vector_entry_point", **options)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise EnvError(f"env {settings.id!r} cannot be created: {reason}", code="E0505") from error


def require_registered(env_id: str) -> None:
    """Refuses an id that Gymnasium does not know, with the nearest one that it does."""
    if env_id in gymnasium.registry:
        return
    known = list(gymnasium.registry)
    by_lower = {re.sub(r"\W", "", name).lower(): name for name in known}
    near = get_close_matches(re.sub(r"\W", "", env_id).lower(), by_lower, n=1, cutoff=0.5)
    hint = f'did you mean "{by_lower[near[0]]}"?' if near else "Is the package that registers it installed?"
    raise SettingsError(
        f'unknown env "{env_id}": it is not registered with Gymnasium; {hint} Your own code is module:Name',
        code="E0204",
    )
