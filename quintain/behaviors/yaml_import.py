"""Reads a trainer configuration of ML-Agents strictly: every problem with its line, its key and the nearest name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import Tag, ValidationError
from pydantic_core import ErrorDetails

from quintain.behaviors.part_settings import RewardSignals, foreign_names
from quintain.behaviors.run_options import RunOptions
from quintain.behaviors.trainer_settings import TRAINERS
from quintain.core import registry
from quintain.settings.base import Settings
from quintain.settings.errors import Problem, settings_error, value_problem
from quintain.settings.layers import merged
from quintain.settings.yaml_text import Document, KeyPath, read_file

_TRAINED = ("default_settings", "behaviors")
_OLD_NAMES = {"conditioning_type": "goal_conditioning_type"}
"""Names from ML-Agents' documents that its own parser never accepted."""


def is_mlagents_file(document: Document) -> bool:
    """Whether a file is written for ML-Agents and not for quintain."""
    keys = document.value if isinstance(document.value, Mapping) else {}
    return "experiment" not in keys and any(key in RunOptions.model_fields for key in keys)


def is_code(env: str) -> bool:
    """Whether an environment is named as module:Name, not by the path of a Unity build."""
    return ":" in env and "/" not in env and "\\" not in env


@dataclass(frozen=True)
class Configuration:
    """The contents of a file, with the paths of all keys that are set."""

    source: str
    options: RunOptions
    given: frozenset[KeyPath]


def read_configuration(path: str | Path) -> Configuration:
    """Reads and validates a file."""
    return check_configuration(read_file(path))


def check_configuration(document: Document, env: str | None = None) -> Configuration:
    """Validates a file; raises one error with every problem in it.

    If it names unknown reward signals, the module of `env` (module:Name) is imported, which may register them.
    """
    return _Reader(document).read(env)


def env_path_of(document: Document) -> str | None:
    """Returns the environment in a file, unparsed."""
    settings = document.value.get("env_settings") if isinstance(document.value, Mapping) else None
    path = settings.get("env_path") if isinstance(settings, Mapping) else None
    return path if isinstance(path, str) else None


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document = document
        assert isinstance(document.value, dict)
        self.values: dict[str, Any] = document.value
        self.problems: list[Problem] = []

    def read(self, env: str | None) -> Configuration:
        rest = {key: value for key, value in self.values.items() if key not in _TRAINED and value is not None}
        options = self._validate(RunOptions, rest, ())
        default = self._block("default_settings", self.values)
        blocks = self._blocks()
        _learn_signals([default, *blocks.values()], env)
        behaviors = {name: self._trainer(merged(default, block), ("behaviors", name)) for name, block in blocks.items()}
        fallback = self._trainer(default, ("default_settings",)) if default or not behaviors else None
        if self.problems:
            raise settings_error(self.problems, self._place)
        assert isinstance(options, RunOptions)
        complete = options.model_copy(update={"default_settings": fallback, "behaviors": behaviors})
        return Configuration(self.document.source, complete, frozenset(self.document.positions))

    def _blocks(self) -> dict[str, dict[str, Any]]:
        given = self._block("behaviors", self.values)
        return {str(name): self._block(name, given, "behaviors") for name in given}

    def _block(self, key: str, values: Mapping[str, Any], *above: str) -> dict[str, Any]:
        """Returns a mapping of the file; an empty one may be written without braces."""
        found = values.get(key)
        if found is None:
            return {}
        if not isinstance(found, dict):
            self.problems.append(Problem((*above, key), "expected a mapping"))
            return {}
        return found

    def _trainer(self, values: dict[str, Any], path: KeyPath) -> Settings | None:
        chosen = values.get("trainer_type", "ppo")
        if chosen not in TRAINERS:
            near = get_close_matches(str(chosen), TRAINERS, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"expected one of: {', '.join(TRAINERS)}"
            self.problems.append(Problem((*path, "trainer_type"), f'unknown trainer "{chosen}"; {hint}', "E0204"))
            return None
        return self._validate(TRAINERS[chosen], values, path)

    def _validate(self, settings_class: type[Settings], values: dict[str, Any], path: KeyPath) -> Settings | None:
        try:
            return settings_class.model_validate(_without_empty_blocks(settings_class, values))
        except ValidationError as error:
            self.problems += [_problem(each, settings_class, path) for each in error.errors(include_url=False)]
            return None

    def _place(self, path: KeyPath) -> str:
        """Returns the place of a setting: in the behaviour's block, in the default settings, or the nearest above."""
        options = [path, ("default_settings", *path[2:])] if path[:1] == ("behaviors",) and len(path) > 2 else [path]
        for each in options:
            if each in self.document.positions:
                line, column = self.document.positions[each]
                return f"{self.document.source}:{line}:{column}"
        return self._place(path[:-1]) if len(path) > 1 else self.document.source


def _learn_signals(blocks: Sequence[Mapping[str, Any]], env: str | None) -> None:
    """Imports the environment's module if an unknown reward signal is named."""
    named = [block.get("reward_signals") for block in blocks]
    foreign = {name for signals in named if isinstance(signals, Mapping) for name in foreign_names(signals)}
    # Names of plugins are looked up only where somebody names a signal that is not ML-Agents' own.
    if foreign and env is not None and is_code(env) and not foreign <= set(registry.names("reward_signal")):
        registry.import_part("env", env)


def _problem(details: ErrorDetails, root: type[Settings], above: KeyPath) -> Problem:
    below, block = _followed(root, details["loc"])
    path, kind = (*above, *below), details["type"]
    if kind == "extra_forbidden":
        return Problem(path, f"unknown setting; {_nearest(str(path[-1]), block)}", "E0203")
    if kind == "choice_name" and block is RewardSignals:
        return Problem(path, f"unknown reward signal; {_nearest_signal(str(path[-1]))}", "E0204")
    if kind == "missing":
        return Problem(path, "not set, and it has no default")
    return Problem(path, value_problem(details), details.get("ctx", {}).get("code", "E0205"))


def _without_empty_blocks(settings_class: type[Settings], values: dict[str, Any]) -> dict[str, Any]:
    """Removes keys without a value (`network_settings:` and nothing below) where null has no meaning."""
    fields = settings_class.model_fields
    return {
        key: value
        for key, value in values.items()
        if value is not None or key not in fields or type(None) in get_args(fields[key].annotation)
    }


def _followed(root: type[Settings], location: KeyPath) -> tuple[KeyPath, type[Settings] | None]:
    """Returns the keys of a problem's path as they are in the file, and the class of its block."""
    annotation: Any = root
    path: list[str | int] = []
    governing: type[Settings] | None = None
    for step in location:
        annotation = _plain(annotation)
        is_block = isinstance(annotation, type) and issubclass(annotation, Settings)
        governing = annotation if is_block else None
        below, is_key = _below(annotation, step)
        annotation = below
        if is_key:
            path.append(step)
    return tuple(path), governing


def _below(annotation: Any, step: str | int) -> tuple[Any, bool]:
    """Returns the value below a step of a problem's path, and whether the step is a key of the file."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        field = annotation.model_fields.get(str(step))
        if field is None and annotation is RewardSignals and str(step) in registry.names("reward_signal"):
            return registry.get("reward_signal", str(step)).settings_class, True
        return None if field is None else field.annotation, True
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        return arguments[1], True
    if get_origin(annotation) is tuple:
        return arguments[0], True
    for member in arguments:
        if any(isinstance(mark, Tag) and mark.tag == step for mark in get_args(member)[1:]):
            return member, False
    return None, True


def _plain(annotation: Any) -> Any:
    """Returns a type without annotations, and without None."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    members = [each for each in get_args(annotation) if each is not type(None)]
    is_optional = len(members) == 1 and len(get_args(annotation)) == 2 and get_origin(annotation) is not tuple
    return _plain(members[0]) if is_optional else annotation


def _nearest_signal(name: str) -> str:
    known = sorted({*RewardSignals.model_fields, *registry.names("reward_signal")})
    nearest = get_close_matches(name, known, n=1)
    hint = f'did you mean "{nearest[0]}"?' if nearest else f"expected one of: {', '.join(known)}"
    return f"{hint} One of your own is registered in the module of --env module:Name"


def _nearest(name: str, block: type[Settings] | None) -> str:
    known = list(block.model_fields) if block is not None else []
    if _OLD_NAMES.get(name) in known:
        return f'did you mean "{_OLD_NAMES[name]}"?'
    nearest = get_close_matches(name, known, n=1)
    if nearest:
        return f'did you mean "{nearest[0]}"?'
    return f"expected one of: {', '.join(known)}" if known else "remove it"
