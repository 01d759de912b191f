"""Serializable description of an environment for other processes: JSON that names code.

Only code without a name that another process could import is sent itself (`sent_code`).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium

from quintain.core.registry import Registration, adopt, import_part
from quintain.envs.gym.factories import dressed, factory_of
from quintain.envs.hosts.lane_host import EnvFactory
from quintain.envs.settings import GymSettings, own_wrappers
from quintain.services.processes.sent_code import pack_code, unpack_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from gymnasium.envs.registration import EnvSpec

    from quintain.envs.gym.protocols import GymEnv
    from quintain.typing import Json, JsonObject, Keywords


@dataclass(frozen=True)
class Recipe:
    """Makes environments from settings, or by calling an object: at a path, given here, or sent as code."""

    settings: JsonObject | None = None
    registered: str | None = None
    """Gymnasium's spec of the id, for a process in which the id is not registered."""
    path: str = ""
    arguments: tuple[Json, ...] = ()
    keywords: Keywords = field(default_factory=dict)
    around: JsonObject | None = None
    """Settings of the time limit and wrappers around the environments of a path."""
    code: str = ""
    """The packed callable, or that of the registered id."""
    given: EnvFactory | None = None
    """The callable itself, in the process of the user's script."""
    wrappers: tuple[Registration, ...] = ()
    """Wrappers that are known to that process alone."""
    wrappers_code: str = ""
    """These wrappers, packed."""

    @classmethod
    def from_settings(cls, settings: GymSettings) -> Recipe:
        """Describes the environment of `{type: gym, id: ...}`."""
        registered, given = _describe_registered(settings.id)
        return cls(
            settings=settings.model_dump(mode="json"),
            registered=registered,
            given=given,
            wrappers=own_wrappers(settings),
        )

    @classmethod
    def from_object(cls, made_by: Callable[..., GymEnv], around: GymSettings | None = None) -> Recipe:
        """Describes a class, a function or a partial of one; one that cannot be imported is sent itself."""
        is_bare = around is None or (around.max_episode_steps is None and not around.layers)
        layers = None if is_bare or around is None else around.model_dump(mode="json")
        func, arguments, keywords = made_by, (), {}
        if isinstance(made_by, partial):
            func, arguments, keywords = made_by.func, made_by.args, made_by.keywords
        path = _path_of(func)
        if path and _is_json([arguments, keywords]):
            return cls(path=path, arguments=arguments, keywords=keywords, around=layers, wrappers=own_wrappers(around))
        return cls(given=made_by, around=layers, wrappers=own_wrappers(around))

    def factory(self) -> EnvFactory:
        """Returns the factory of one environment, in any process."""
        for wrapper in unpack_code(self.wrappers_code) if self.wrappers_code else ():  # type: ignore[union-attr]
            adopt(wrapper)
        if self.settings is not None:
            self.register()
            return factory_of(GymSettings.model_validate(self.settings))
        made_by = self.made_by()
        name = self.path or _name_of(made_by)
        around = GymSettings(id=name) if self.around is None else GymSettings.model_validate(self.around)
        return dressed(around, name, made_by)

    def register(self) -> None:
        """Registers an id with Gymnasium that only the original process knew."""
        if self.registered is not None:
            spec = gymnasium.envs.registration.EnvSpec.from_json(self.registered)
            if self.code:
                spec.entry_point = self.made_by()  # type: ignore[assignment]  # a callable is an entry point
            gymnasium.registry.setdefault(spec.id, spec)

    def made_by(self) -> EnvFactory:
        """Returns the object that the recipe describes, if it was made from one."""
        if self.given is not None:
            return self.given
        if self.code:
            return unpack_code(self.code)  # type: ignore[return-value]  # an environment's, as it was packed
        made_by = import_part("env", self.path)
        return partial(made_by, *self.arguments, **self.keywords) if self.arguments or self.keywords else made_by

    def to_json(self) -> JsonObject:
        """Serializes the recipe for a child of this process; raises for code that cannot be packed."""
        code = self.code if self.given is None else pack_code(self.given, _name_of(self.given))
        names = ", ".join(wrapper.name for wrapper in self.wrappers)
        wrappers_code = pack_code(list(self.wrappers), names) if self.wrappers else ""
        packed = replace(self, code=code, given=None, wrappers=(), wrappers_code=wrappers_code)
        words = {name: value for name, value in vars(packed).items() if value}
        found: JsonObject = json.loads(json.dumps(words, allow_nan=False))
        return found

    @classmethod
    def from_json(cls, words: JsonObject) -> Recipe:
        return cls(**{**words, "arguments": tuple(words.get("arguments", ()))})


def _describe_registered(env_id: str) -> tuple[str | None, EnvFactory | None]:
    """Returns Gymnasium's description of an id, and the function behind it if no other process can import it."""
    spec, given = gymnasium.registry.get(env_id), None
    if spec is None:
        return None, None
    if callable(spec.entry_point):
        path = _path_of(spec.entry_point)
        given = None if path else spec.entry_point
        spec = gymnasium.envs.registration.EnvSpec(**{**_fields(spec), "entry_point": path or "sent:code"})
    try:
        return str(spec.to_json()), given
    except (TypeError, ValueError):
        # It has arguments of its own that are not JSON; a plugin registers it in the worker too, or nobody does.
        return None, None


def _fields(spec: EnvSpec) -> Keywords:
    skipped = {"namespace", "name", "version"}
    return {name: value for name, value in vars(spec).items() if name not in skipped}


def _path_of(made_by: Callable[..., GymEnv]) -> str:
    """Returns the module:Name under which any process can import it; empty if there is none."""
    module, name = getattr(made_by, "__module__", None), getattr(made_by, "__qualname__", None)
    found: Any = sys.modules.get(module or "")
    for step in (name or "").split("."):
        found = getattr(found, step, None)
    return f"{module}:{name}" if found is made_by and module != "__main__" else ""


def _name_of(made_by: Callable[..., GymEnv]) -> str:
    return str(getattr(made_by, "__qualname__", type(made_by).__name__))


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
