"""Serializable description of an environment for other processes: JSON that names code and never holds any."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium

from quintain.core.registry import import_part
from quintain.envs.gym.factories import dressed, factory_of
from quintain.envs.hosts.lane_host import EnvFactory
from quintain.envs.settings import GymSettings
from quintain.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gymnasium.envs.registration import EnvSpec

    from quintain.envs.gym.protocols import GymEnv
    from quintain.typing import Json, JsonObject, Keywords

_HOW = "Name it as module:Name, define it in a module that can be imported, or keep it in this process"


@dataclass(frozen=True)
class Recipe:
    """Makes environments from settings, or by calling the object at a path."""

    settings: JsonObject | None = None
    registered: str | None = None
    """Gymnasium's spec of the id, for a process in which the id is not registered."""
    path: str = ""
    arguments: tuple[Json, ...] = ()
    keywords: Keywords = field(default_factory=dict)
    around: JsonObject | None = None
    """Settings of the time limit and wrappers around the environments of a path."""

    @classmethod
    def from_settings(cls, settings: GymSettings) -> Recipe:
        """Describes the environment of `{type: gym, id: ...}`."""
        registered = _describe_registered(settings.id)
        return cls(settings=settings.model_dump(mode="json"), registered=registered)

    @classmethod
    def from_object(cls, made_by: Callable[..., GymEnv], around: GymSettings | None = None) -> Recipe:
        """Describes a class, a function or a partial of one; refuses objects that another process could not import."""
        if isinstance(made_by, partial):
            inner = cls.from_object(made_by.func, around)
            recipe = replace(inner, arguments=made_by.args, keywords=made_by.keywords)
            recipe.to_json()
            return recipe
        is_bare = around is None or (around.max_episode_steps is None and not around.layers)
        return cls(path=_path_of(made_by), around=None if is_bare or around is None else around.model_dump(mode="json"))

    def factory(self) -> EnvFactory:
        """Returns the factory of one environment, in any process."""
        if self.settings is not None:
            self.register()
            return factory_of(GymSettings.model_validate(self.settings))
        around = GymSettings(id=self.path) if self.around is None else GymSettings.model_validate(self.around)
        return dressed(around, self.path, self.made_by())

    def register(self) -> None:
        """Registers an id with Gymnasium that only the original process knew."""
        if self.registered is not None:
            spec = gymnasium.envs.registration.EnvSpec.from_json(self.registered)
            gymnasium.registry.setdefault(spec.id, spec)

    def made_by(self) -> EnvFactory:
        """Returns the object that the recipe describes, if it was made from one."""
        made_by = import_part("env", self.path)
        return partial(made_by, *self.arguments, **self.keywords) if self.arguments or self.keywords else made_by

    def to_json(self) -> JsonObject:
        """Serializes the recipe; raises for arguments that are not JSON."""
        words = {name: value for name, value in vars(self).items() if value}
        try:
            text = json.dumps(words, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise SettingsError(
                f"an environment's arguments cannot be sent to another process ({error}). {_HOW}",
                code="E0231",
            ) from error
        found: JsonObject = json.loads(text)
        return found

    @classmethod
    def from_json(cls, words: JsonObject) -> Recipe:
        return cls(**{**words, "arguments": tuple(words.get("arguments", ()))})


def _describe_registered(env_id: str) -> str | None:
    spec = gymnasium.registry.get(env_id)
    if spec is None:
        return None
    if callable(spec.entry_point):
        path = _path_of(spec.entry_point)
        spec = gymnasium.envs.registration.EnvSpec(**{**_fields(spec), "entry_point": path})
    try:
        return str(spec.to_json())
    except (TypeError, ValueError):
        # It has arguments of its own that are not JSON; a plugin registers it in the worker too, or nobody does.
        return None


def _fields(spec: EnvSpec) -> Keywords:
    skipped = {"namespace", "name", "version"}
    return {name: value for name, value in vars(spec).items() if name not in skipped}


def _path_of(made_by: Callable[..., GymEnv]) -> str:
    module, name = getattr(made_by, "__module__", None), getattr(made_by, "__qualname__", None)
    found: Any = sys.modules.get(module or "")
    for step in (name or "").split("."):
        found = getattr(found, step, None)
    if found is not made_by or module == "__main__":
        shown = name or type(made_by).__name__
        raise SettingsError(f"another process cannot import {module}:{shown}. {_HOW}", code="E0231")
    return f"{module}:{name}"
