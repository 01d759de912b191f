"""The environment in a slot of a Python call: an id, settings, a class, a factory, or an environment."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec

from quintain.core import registry
from quintain.envs.base import Env
from quintain.errors import SettingsError
from quintain.settings.base import PartSettings

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv
    from quintain.typing import JsonObject

EnvSlot: TypeAlias = Any
"""An environment's name, settings, class or factory, or the environment itself."""

_WRAPPERS = frozenset({"wrappers", "env_wrapper"})
_OF_VECTORS = frozenset({"num_envs", "vectorization_mode", "vector_kwargs", "wrappers"})
"""Arguments of `gymnasium.make_vec` that it notes among those of the environment."""


def env_settings(slot: EnvSlot, num_ranks: int = 1) -> PartSettings | JsonObject:
    """Returns the settings of an environment's slot: its own, those of its name, or a description of the object."""
    if isinstance(slot, PartSettings):
        return slot
    if isinstance(slot, str):
        return registry.env_named(slot)
    if is_instance(slot):
        spec = gym_spec(slot)
        return {
            "type": "gym",
            "id": type(slot).__name__ if spec is None else spec.id,
            # Each rank brings an object of its own.
            "num_lanes": lanes_of(slot) * num_ranks,
            "group_size": int(getattr(slot, "group_size", 1)),
        }
    return {"type": "gym", "id": getattr(slot, "__name__", type(slot).__name__)}


def name_wrappers(settings: dict[str, Any]) -> None:
    """Puts names in place of wrappers that are classes or functions."""
    for key in _WRAPPERS & settings.keys():
        given = settings[key]
        settings[key] = list(map(_named, given)) if isinstance(given, list | tuple) else _named(given)


def _named(wrapper: EnvSlot) -> EnvSlot:
    """Returns a wrapper by its name: Gymnasium's own, module:Name, or one that only this process knows."""
    if isinstance(wrapper, Mapping):
        inner = {key: _named(value) if key == "type" else value for key, value in wrapper.items()}
        return {_named(key): value for key, value in inner.items()}
    if not callable(wrapper):
        return wrapper
    short = getattr(wrapper, "__name__", "")
    theirs = vars(gymnasium.wrappers).get(short)
    if theirs is wrapper:
        return short
    is_of_script = wrapper.__module__ == "__main__" or "<locals>" in getattr(wrapper, "__qualname__", "")
    if theirs is not None and is_of_script:
        raise SettingsError(f"wrappers: {short} is called as one of Gymnasium's; give it another name", code="E0204")
    return registry.name_for("wrapper", wrapper)


def is_instance(slot: EnvSlot) -> bool:
    """Whether the slot is an environment, not a class, a factory or a name."""
    return hasattr(slot, "step") and not isinstance(slot, type)


def lanes_of(env: EnvSlot) -> int:
    """Returns the number of lanes of an environment."""
    return int(getattr(env, "num_lanes", None) or getattr(env, "num_envs", None) or 1)


def gym_spec(env: EnvSlot) -> EnvSpec | None:
    """Returns the Gymnasium spec of this object, if it has one; our own environments have another kind of spec."""
    spec = None if isinstance(env, Env) else getattr(env, "spec", None)
    return spec if isinstance(spec, EnvSpec) else None


def maker_of_more(env: EnvSlot) -> EnvSlot:
    """Returns a factory of environments like this object, or of one lane of it; None if its origin is unknown.

    Wrappers around a vector environment leave no trace in its spec, so a wrapped one cannot be made again.
    """
    if isinstance(env, gymnasium.vector.VectorWrapper):
        return None
    if isinstance(env, gymnasium.vector.SyncVectorEnv | gymnasium.vector.AsyncVectorEnv):
        return env.env_fns[0]
    spec = gym_spec(env)
    return None if spec is None else partial(_one_of, spec)


def _one_of(spec: EnvSpec) -> GymEnv:
    """Makes one environment of a spec, also of one that `make_vec` has filled in for many."""
    one, options = copy(spec), dict(spec.kwargs)
    limit = options.pop("max_episode_steps", spec.max_episode_steps)
    one.kwargs = {name: value for name, value in options.items() if name not in _OF_VECTORS}
    return gymnasium.make(one, max_episode_steps=limit, disable_env_checker=True)
