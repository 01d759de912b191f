"""Factories of single Gymnasium environments: by id, or by module:Name of a class or factory."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING

import gymnasium

from quintain.core.registry import import_part
from quintain.envs.gym.packages import missing_package, names_registered_id, registered_id, silence_banner
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
    if not names_registered_id(settings.id):
        return partial(_checked_instance, settings)
    limit = {} if settings.max_episode_steps is None else {"max_episode_steps": settings.max_episode_steps}
    return partial(make_registered, registered_id(settings.id), **limit, **settings.kwargs)


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
    env: GymEnv = import_part("env", settings.id)(**settings.kwargs)
    if isinstance(env, gymnasium.Env) and settings.max_episode_steps is not None:
        return gymnasium.wrappers.TimeLimit(env, settings.max_episode_steps)
    return env
