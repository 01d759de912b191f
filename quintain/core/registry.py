"""Maps the names a user may write to the classes behind them and to their settings.

The parts that ship are declared in torch-free `settings` modules, any number for each kind. This module loads those
by name, the only import from a lower layer to a higher one; implementations wait for `Registration.load`.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_type_hints

from pydantic import create_model

from quintain.core import trust
from quintain.errors import CheckpointError, SettingsError
from quintain.settings.base import PartSettings
from quintain.settings.yaml_text import shortened

if TYPE_CHECKING:
    from quintain.typing import Keywords

Maker: TypeAlias = Callable[..., Any]
"""The class of a part, or a function that makes or is one; its kind says with which arguments it is called."""
Part = TypeVar("Part", bound=Maker)

_ALGORITHMS = tuple(f"quintain.algorithms.{name}" for name in ("settings", "loss_settings", "online_settings"))
KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "env": ("EnvSettings", "quintain.envs.settings"),
        "env_event": ("EnvEventSettings", "quintain.envs.settings"),
        "policy": ("PolicySettings", "quintain.policies.settings"),
        "network": ("NetworkModuleSettings", "quintain.policies.settings"),
        "wrapper": ("PartSettings", "quintain.envs.settings"),
        "algorithm": ("AlgorithmSettings", *_ALGORITHMS),
        "auxiliary_loss": ("AuxiliaryLossSettings", *_ALGORITHMS),
        "reward_signal": ("RewardSignalSettings", "quintain.rewards.settings"),
        "rollout": ("RolloutSettings", "quintain.rollouts.settings"),
        "trainer": ("TrainerSettings", "quintain.trainers.settings"),
        "loop": ("LoopSettings", "quintain.trainers.settings", "quintain.text.settings"),
        "provider": ("ProviderSettings", "quintain.text.settings"),
        "text_scenario": ("TextScenarioSettings", "quintain.text.settings"),
        "event": ("ScheduledEventSettings", "quintain.trainers.settings"),
        "writer": ("WriterSettings", "quintain.services.reporting.settings"),
        "placement": ("PlacementSettings", "quintain.placements.settings"),
    }
)
"""Each kind: the settings of a part that brings none, then the torch-free modules that declare the parts that ship.

The first module has these settings; the others are imported when a name is not found there, or all are listed.
"""

COUNTERPARTS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("algorithm", "a3c"): "a2c is its synchronous counterpart",
        ("algorithm", "ars"): "reinforce and ppo also learn from whole returns",
        ("algorithm", "crossq"): "sac is the nearest",
        ("algorithm", "ddpg"): "td3 is its successor",
        ("algorithm", "ddqn"): "it is dqn with double=true",
        ("algorithm", "maskableppo"): "it is ppo: masks of info or of an action_masks method are used by themselves",
        ("algorithm", "ppo_lstm"): 'it is ppo with memory="{cell: lstm}"',
        ("algorithm", "qrdqn"): "dqn is the nearest",
        ("algorithm", "recurrentppo"): 'it is ppo with memory="{cell: lstm}"',
        ("algorithm", "tqc"): "sac is the nearest",
        ("algorithm", "trpo"): "ppo is its successor",
        ("algorithm", "vpg"): "it is called reinforce here",
    }
)
"""What stands for names of other frameworks, in lower case, by kind."""

DEFAULTED_BLOCKS = frozenset({"policy", "rollout", "trainer"})
"""The blocks of a behaviour for which an algorithm may bring defaults."""

GIVEN_ARGUMENTS = {"event": 1, "env_event": 2, "network": 0}
"""How many leading arguments a function of this kind is called with: the trainer, or the environment and its lanes."""
GIVEN_BY_NAME = frozenset({"rng", "observation_space", "action_space"})
"""Arguments that a function gets by name if it asks for them."""


@dataclass(frozen=True)
class Registration:
    """Ties a name to a settings class and to the part it configures."""

    kind: str
    name: str
    settings_class: type[PartSettings]
    target: str | Maker
    """The class or function, or "module:Name" to import when it is needed."""
    defaults: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What an algorithm prefers for policy, rollout and trainer; a user's file still has the last word."""

    def load(self) -> Maker:
        """Imports the part if necessary and returns it."""
        if isinstance(self.target, str):
            return _imported(self.kind, self.target)
        return self.target

    @property
    def description(self) -> str:
        """Returns the first line of the part's docstring, without importing anything."""
        own = None if isinstance(self.target, str) else self.target.__doc__
        return (own or self.settings_class.__doc__ or "").strip().split("\n")[0]


# The one piece of module-level state: kind -> name -> registration, each kind filled when first asked for.
_registered: dict[str, dict[str, Registration]] = {}


def register(
    kind: str,
    name: str,
    settings_class: type[PartSettings] | None = None,
    *,
    defaults: Mapping[str, Mapping[str, object]] | None = None,
) -> Callable[[Part], Part]:
    """Returns the decorator that makes a class (or an event function) available under `name`."""

    def remember(part: Part) -> Part:
        _known(kind)
        chosen = settings_class or _settings_of(kind, part)
        if unknown := set(defaults or {}) - DEFAULTED_BLOCKS:
            raise SettingsError(
                f"{kind} {name!r} registers defaults for {', '.join(sorted(unknown))}; "
                f"expected {', '.join(sorted(DEFAULTED_BLOCKS))}"
            )
        _add(Registration(kind, name, chosen, part, defaults or {}))
        return part

    return remember


def get(kind: str, name: str) -> Registration:
    """Finds a registration by its name, or by module:Name, which imports that module."""
    known = _known(kind, name)
    if name in known:
        return known[name]
    if (lower := as_registered(kind, name)) in known:
        return known[lower]
    if ":" in name:
        return _registration_of(kind, name, import_part(kind, name))
    if name in (plugins := _plugins(kind)):
        _add(_registration_of(kind, name, _imported(kind, plugins[name])))
        return known[name]
    shown = shortened(name)
    nearest = get_close_matches(shown, names(kind), n=1)
    expected = f"expected one of: {', '.join(names(kind))}" if names(kind) else "code of yours is module:Name"
    hint = COUNTERPARTS.get((kind, name.lower())) or (f'did you mean "{nearest[0]}"?' if nearest else expected)
    raise SettingsError(f'unknown {kind} "{shown}"; {hint}', code="E0204")


def as_registered(kind: str, name: str) -> str:
    """Returns a name as it is registered where it differs in upper and lower case only, such as PPO."""
    return name.lower() if name not in (known := _known(kind, name)) and name.lower() in known else name


def env_named(name: str) -> dict[str, str]:
    """Returns the settings that one word for an environment stands for.

    Example:
        >>> env_named("CartPole-v1"), env_named("native/CartPole-v1")
        ({'type': 'gym', 'id': 'CartPole-v1'}, {'type': 'native', 'id': 'CartPole-v1'})
    """
    known = _known("env")
    kind, _, inner = name.partition("/")
    if inner and kind in known and "id" in known[kind].settings_class.model_fields:
        return {"type": kind, "id": inner}
    is_registered = name != "gym" and ":" not in name and name in names("env")
    return {"type": name} if is_registered else {"type": "gym", "id": name}


def names(kind: str) -> list[str]:
    """Lists the registered names of a kind in alphabetical order; imports no plugin."""
    return sorted({*_known(kind), *_plugins(kind)})


def descriptions(kind: str) -> dict[str, str]:
    """Returns one line about each registered name; imports no plugin."""
    lines = {name: f"Loads {target}." for name, target in _plugins(kind).items()}
    lines.update((name, registration.description) for name, registration in _known(kind).items())
    return dict(sorted(lines.items()))


def name_of(kind: str, settings_class: type[PartSettings]) -> str:
    """Finds the one name under which a settings class is registered."""
    matches = [known.name for known in _known(kind).values() if known.settings_class is settings_class]
    if len(matches) == 1:
        return matches[0]
    found = f"registered as {', '.join(sorted(matches))}" if matches else f"registered for no {kind}"
    raise SettingsError(f"{settings_class.__name__} is {found}; set its type", code="E0204")


def name_for(kind: str, part: Maker) -> str:
    """Returns a name for a part that Python code brings: module:Name if any process can import it by that.

    Any other is registered in this process under its own name, in place of an earlier one of that name.
    """
    place = _place(part) if hasattr(part, "__qualname__") else ""
    module, _, attribute = place.partition(":")
    found: object = sys.modules.get(module)
    for step in attribute.split(".") if module != "__main__" else ():
        found = getattr(found, step, None)
    if place and found is part:
        return place
    if registered := [each.name for each in _known(kind).values() if each.target is part]:
        return registered[0]
    name = getattr(part, "__name__", type(part).__name__)
    _known(kind)[name] = _registration_of(kind, name, part)
    return str(name)


def importable_name(kind: str, name: str) -> str:
    """Returns a name by which any process can import a part: module:Name if it is registered by a decorator only."""
    target = get(kind, name).target
    if ":" in name or isinstance(target, str) or name in _plugins(kind):
        return name
    return name if _is_local(target) else _place(target)


def is_local(kind: str, name: str) -> bool:
    """Whether only this process knows a part, because it stands in a script or inside a function."""
    target = get(kind, name).target
    return ":" not in name and not isinstance(target, str) and name not in _plugins(kind) and _is_local(target)


def _is_local(target: str | Maker) -> bool:
    return "<locals>" in _place(target) or _place(target).startswith("__main__:")


def only_here(kind: str, name: str) -> Registration | None:
    """Returns a registration that no other process can import: of the main script, or made inside a function."""
    found = get(kind, name)
    return found if _is_local(found.target) else None


def adopt(registration: Registration) -> None:
    """Adds a registration of another process."""
    _known(registration.kind)[registration.name] = registration


def import_part(kind: str, path: str) -> Maker:
    """Imports a user's `module:Name`; for a run of an unknown origin, only names that the user permitted."""
    trust.require_permitted(path)
    part = _imported(kind, path)
    trust.require_defined_there(path, part)
    return part


def import_module_of(kind: str, path: str) -> ModuleType:
    """Imports the module of a user's `module:anything`, with the permission that `import_part` needs."""
    trust.require_permitted(path)
    return _module_of(kind, path)


def _module_of(kind: str, path: str) -> ModuleType:
    try:
        return trust.import_module(path.partition(":")[0])
    except (Exception, SystemExit) as error:  # a user's module may do anything while it is imported
        if isinstance(error, CheckpointError) or (isinstance(error, SettingsError) and error.code == "E0242"):
            # It says by itself what may not be imported here, or which package is missing.
            raise
        first_line = (str(error).splitlines() or [""])[0]
        message = f'cannot import {kind} "{path}": {type(error).__name__}: {first_line}{_raised_in_file(error)}'
        raise SettingsError(message, code="E0208") from error


def _imported(kind: str, path: str) -> Maker:
    module_name, _, attribute = path.partition(":")
    if not attribute:
        raise SettingsError(f'cannot import {kind} "{path}": expected module:name', code="E0208")
    part: object = _module_of(kind, path)
    for step in attribute.split("."):
        if not hasattr(part, step):
            near = get_close_matches(step, vars(part) if hasattr(part, "__dict__") else (), n=1, cutoff=0.5)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            owner = getattr(part, "__name__", module_name)
            raise SettingsError(f'cannot import {kind} "{path}": {owner} has no "{step}"{hint}', code="E0208")
        part = getattr(part, step)
    if not callable(part):
        raise SettingsError(f'cannot import {kind} "{path}": it is not a class or function', code="E0208")
    return part


def _raised_in_file(error: BaseException) -> str:
    """Returns the place in the user's own file; a syntax error names it itself, a missing module has none."""
    frames = traceback.extract_tb(error.__traceback__)
    # Libraries put functions of their own in the place of sys.exit; who called it is of interest.
    while isinstance(error, SystemExit) and len(frames) > 1 and frames[-1].name == "exit":
        frames.pop()
    frame = frames[-1]
    is_machinery = (
        frame.filename in (__file__, trust.__file__) or frame.filename.startswith("<") or "importlib" in frame.filename
    )
    return "" if is_machinery else f" ({frame.filename}:{frame.lineno})"


def _known(kind: str, wanted: str = "") -> dict[str, Registration]:
    if kind not in KINDS:
        raise SettingsError(f'unknown kind "{kind}"; expected one of: {", ".join(KINDS)}', code="E0204")
    is_empty, known = not _registered.get(kind), _registered.setdefault(kind, {})
    for number, module in enumerate(KINDS[kind][1:]):
        if is_empty if number == 0 else wanted not in known:
            for registration in (each for each in import_module(module).REGISTERED if each.kind == kind):
                _add(registration)
    return known


def _plugins(kind: str) -> dict[str, str]:
    return _installed(kind, tuple(sys.path))


@cache
def _installed(kind: str, path: tuple[str, ...]) -> dict[str, str]:
    # Reading the metadata of every installed package is slow, and most commands never ask for a plugin.
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=f"quintain.{kind}")}


def _add(registration: Registration) -> None:
    existing = (known := _registered[registration.kind]).get(registration.name)
    if existing is not None and _place(existing.target) != _place(registration.target):
        raise SettingsError(
            f'{registration.kind} "{registration.name}" is already registered for {_place(existing.target)}; '
            f"choose another name for {_place(registration.target)}",
            code="E0204",
        )
    known[registration.name] = registration


def _registration_of(kind: str, name: str, part: Maker) -> Registration:
    for known in _known(kind).values():
        if _place(known.target) == _place(part):
            return Registration(kind, name, known.settings_class, part, known.defaults)
    settings_class = inspect.getattr_static(part, "settings_class", None)
    if isinstance(settings_class, type) and issubclass(settings_class, PartSettings):
        return Registration(kind, name, settings_class, part)
    if kind in GIVEN_ARGUMENTS and (kind != "event" or not isinstance(part, type)):
        return Registration(kind, name, _settings_of(kind, part), part)
    bases = part.__mro__[1:] if isinstance(part, type) else ()
    for base in bases:
        for known in _known(kind).values():
            if _place(known.target) == _place(base):
                # What derives from a part takes the settings, and prefers the blocks, of that part.
                return Registration(kind, name, known.settings_class, part, known.defaults)
    if kind == "wrapper" or (kind in ("reward_signal", "auxiliary_loss") and isinstance(part, type)):
        settings_class = PartSettings if kind == "wrapper" else _settings_of(kind, part)
        return Registration(kind, name, settings_class, part)
    raise SettingsError(
        f'{kind} "{name}" has no settings; put @register("{name.rpartition(":")[2].lower()}", …) on it '
        "or give it an attribute settings_class that derives from PartSettings",
        code="E0204",
    )


def _settings_of(kind: str, part: Maker) -> type[PartSettings]:
    default: type[PartSettings] = getattr(import_module(KINDS[kind][1]), KINDS[kind][0])
    if kind == "network" and isinstance(part, type) and not hasattr(part, "settings_class"):
        # Without the object itself, which is the first parameter.
        return _settings_from_parameters(inspect.getattr_static(part, "__init__"), default, 1, part.__name__)
    if kind == "env_event" and isinstance(part, type) and not hasattr(part, "settings_class"):
        # The parameters of a class of functors are those of its calls; itself is the first.
        return _settings_from_parameters(part.__call__, default, GIVEN_ARGUMENTS[kind] + 1)
    if isinstance(part, type):
        return getattr(part, "settings_class", default)
    return _settings_from_parameters(part, default, GIVEN_ARGUMENTS.get(kind, 1))


def _settings_from_parameters(
    function: Maker, base: type[PartSettings], num_given: int, name: str = ""
) -> type[PartSettings]:
    """Makes a settings class from the parameters of a function; the first ones are given by the caller."""
    parameters = list(inspect.signature(function).parameters.values())[num_given:]
    hints = get_type_hints(function, include_extras=True) if parameters else {}
    name = name or getattr(function, "__name__", "event")
    fields: Keywords = {}
    for parameter in parameters:
        if parameter.name in GIVEN_BY_NAME or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        has_default = parameter.default is not parameter.empty
        if parameter.name not in hints and (not has_default or parameter.default is None):
            raise SettingsError(
                f"{name}(): parameter {parameter.name} needs a type, such as {parameter.name}: float, or a default "
                f"other than None; "
                f"{' and '.join(sorted(GIVEN_BY_NAME))} are given by their names"
            )
        annotation = hints.get(parameter.name, type(parameter.default))
        fields[parameter.name] = (annotation, parameter.default if has_default else ...)
    title = "".join(word.capitalize() for word in name.split("_")) + "Settings"
    return create_model(title, __base__=base, __doc__=function.__doc__, __module__=function.__module__, **fields)


def _place(target: str | Maker) -> str:
    return target if isinstance(target, str) else f"{target.__module__}:{target.__qualname__}"
