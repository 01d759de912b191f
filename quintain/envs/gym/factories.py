"""Factories of single Gymnasium environments: by id, or by module:Name of a class or factory."""

from __future__ import annotations

from copy import copy
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING

import gymnasium

from quintain.core.registry import import_part
from quintain.envs.gym.packages import is_atari, missing_package, names_registered_id, registered_id, silence_banner
from quintain.envs.gym.wrapping import wrapped
from quintain.envs.hosts.lane_host import EnvFactory
from quintain.envs.settings import GymSettings
from quintain.errors import SettingsError

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv
    from quintain.typing import Keyword


def made_alone(name: str, factory: EnvFactory) -> GymEnv:
    """Makes one environment; refuses vector environments."""
    env = factory()
    if isinstance(env, gymnasium.vector.VectorEnv):
        env.close()
        raise SettingsError(
            f"env factory {name!r} made a vector environment; a factory makes one lane. Pass what it makes"
        )
    return env


def factory_of(settings: GymSettings) -> EnvFactory:
    """Returns the factory of the environments in the settings."""
    make: EnvFactory
    if names_registered_id(settings.id):
        limit = {} if settings.max_episode_steps is None else {"max_episode_steps": settings.max_episode_steps}
        env_id = registered_id(settings.id)
        # Only where the preset is for it: the wrappers say what is wrong better than an unknown keyword.
        kwargs = settings.env_kwargs if is_atari(env_id) else settings.kwargs
        make = partial(make_registered, env_id, **limit, **kwargs)
    else:
        make = partial(_checked_instance, settings)
    return partial(_made_and_wrapped, settings, make) if settings.layers else make


def with_pictures(settings: GymSettings) -> GymSettings:
    """Sets the render mode that draws to memory, where ids, classes and factories take one."""
    takes_it = (
        names_registered_id(settings.id) or "render_mode" in signature(import_part("env", settings.id)).parameters
    )
    if "render_mode" in settings.kwargs or not takes_it:
        return settings
    return settings.model_copy(update={"kwargs": {**settings.kwargs, "render_mode": "rgb_array"}})


def dressed(settings: GymSettings, name: str, factory: EnvFactory) -> EnvFactory:
    """Returns a user's factory of environments with the time limit and the wrappers of the settings."""
    make = partial(made_alone, name, factory)
    if settings.max_episode_steps is None and not settings.layers:
        return make
    return partial(_made_and_wrapped, settings, lambda: _limited(settings, make()))


def _made_and_wrapped(settings: GymSettings, make: EnvFactory) -> GymEnv:
    return wrapped(settings, make())


def make_registered(env_id: str, /, **kwargs: Keyword) -> GymEnv:
    """Makes a registered environment without Gymnasium's checking wrappers."""
    spec = copy(gymnasium.spec(env_id))
    # A lane is always reset before it is stepped, and our own checks run on every step; Gymnasium's checker would cost
    # as much as a small environment.
    spec.order_enforce = False
    try:
        silence_banner(env_id)
        return gymnasium.make(spec, disable_env_checker=True, **kwargs)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise missing_package(env_id, error) or error from error


def _checked_instance(settings: GymSettings) -> GymEnv:
    """Makes one environment from user code, with a time limit as for registered ones."""
    return _limited(settings, import_part("env", settings.id)(**settings.kwargs))


def _limited(settings: GymSettings, env: GymEnv) -> GymEnv:
    if isinstance(env, gymnasium.Env) and settings.max_episode_steps is not None:
        return gymnasium.wrappers.TimeLimit(env, settings.max_episode_steps)
    return env
