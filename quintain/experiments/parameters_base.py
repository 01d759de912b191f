"""The base of hyper-parameters: plain dataclasses, validated when made, equal after a round trip through JSON or YAML.

A parameter class is a subclass of `SubParameters` under `@register_parameter_class` and the standard `@dataclass`.
Arguments are copied, never changed: a mapping becomes an object of the annotated class, None becomes its defaults where
the annotation names a parameter class, and every other value is checked against the annotation.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Any, Self, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from quintain.core.versions import quintain_version
from quintain.errors import SettingsError
from quintain.experiments.migrate import PACKAGE_KEY, VERSION_KEY
from quintain.settings.base import plain
from quintain.settings.errors import Problem, problems_of, settings_error
from quintain.settings.yaml_text import parse
from quintain.typing import JsonObject

Value: TypeAlias = Any
"""A parameter's value: its annotation says of which type."""
Options: TypeAlias = dict[str, Value]
"""Parameters by name, in place of an object."""
Class = TypeVar("Class", bound=type)

TYPE_KEY = "_type"
CODE_KEY = "_code"
"""Modules and classes of users' own, module:Name, which are imported before the names that they register are read."""

_classes: dict[str, ParametersMeta] = {}
_value_classes: dict[str, type[ParameterValue]] = {}


class ParameterValue:
    """A value that is no dataclass of parameters, such as an update schedule."""

    def to_dict(self) -> JsonObject:
        """Returns the value as JSON; `from_dict` reads it."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Self:
        """Makes the value that `to_dict` wrote; `data` stays as it is."""
        raise NotImplementedError


class ParametersMeta(type):
    """Checks and converts the arguments before the generated constructor sees them."""

    def __call__(cls, *args: Value, **kwargs: Value) -> Value:
        names = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
        if len(args) > len(names):
            raise SettingsError(
                f"{cls.__name__}: found {len(args)} values, expected at most {len(names)}", code="E0205"
            )
        given = dict(zip(names, args, strict=False))
        for name in kwargs:
            if name in given:
                raise SettingsError(f"{cls.__name__}.{name}: set twice", code="E0203")
        return cls.make({**given, **kwargs})

    def make(cls, given: Mapping[str, Value]) -> Value:
        """Makes an object of values by name."""
        annotations = cls.annotations_of()
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
        problems: list[Problem] = []
        for name in given:
            if name not in annotations:
                details = {"type": "extra_forbidden", "loc": (name,), "msg": "", "input": None}
                problems += problems_of([details], lambda path: list(annotations))  # type: ignore[list-item]
        for name, field in fields.items():
            has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            if name not in given and not has_default:
                problems.append(Problem((name,), "not set, and it has no default"))
        if problems:
            raise settings_error(problems, lambda path: cls.__name__)
        converted = {
            name: convert(annotations[name], plain(given.get(name)), (cls.__name__, name))
            for name in annotations
            if name in given or parameter_class(annotations[name]) is not None
        }
        added = {name: converted.pop(name) for name in list(converted) if name not in fields}
        made = super().__call__(**converted)
        for name, value in added.items():
            object.__setattr__(made, name, value)
        made.check()
        return made

    def annotations_of(cls) -> Mapping[str, Value]:
        """Returns the annotation of every parameter."""
        return declared_annotations(cls)


@cache
def declared_annotations(cls: type) -> dict[str, Value]:
    """Returns the annotations of the fields that a class declares."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _origin(annotation: Value) -> object:
    """Returns the generic type of an annotation, as an object that may be compared with any."""
    return get_origin(annotation)


def parameter_class(annotation: Value) -> type[BaseHyperParameters] | None:
    """Returns the parameter class that an annotation names, such as `RlTrainerParameters | dict | None`."""
    options = get_args(annotation) if _origin(annotation) in (Union, UnionType) else (annotation,)
    found = [each for each in options if isinstance(each, ParametersMeta)]
    return found[0] if found else None  # type: ignore[return-value]


def convert(annotation: Value, value: Value, place: tuple[str, ...]) -> Value:
    """Returns a value as its annotation wants it; raises a SettingsError that names the place."""
    inner = parameter_class(annotation)
    if inner is not None:
        if isinstance(value, inner):
            return value
        if value is None:
            return inner()
        if isinstance(value, Mapping):
            return inner.from_dict(value)
        raise SettingsError(f"{'.'.join(place)}: found {value!r}, expected {inner.__name__} or a mapping", code="E0205")
    if isinstance(value, Mapping) and isinstance(annotation, type) and issubclass(annotation, ParameterValue):
        known = [name for name, each in _value_classes.items() if issubclass(each, annotation)]
        named = str(value.get(TYPE_KEY))
        if named not in known:
            near = get_close_matches(named, known, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"expected one of: {', '.join(known)}"
            raise SettingsError(f'{".".join(place)}: unknown {TYPE_KEY} "{named}"; {hint}', code="E0205")
        value = _value_classes[named].from_dict(value)
    try:
        return _adapter(annotation).validate_python(_with_tuples(annotation, value))
    except ValidationError as error:
        found = problems_of(error.errors(include_url=False)[:1], lambda path: [])[0].what
        raise SettingsError(f"{'.'.join(place)}: {found}", code="E0205") from None


@cache
def _adapter(annotation: Value) -> TypeAdapter[Value]:
    return TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True))


def _with_tuples(annotation: Value, value: Value) -> Value:
    """Replaces lists by tuples where the annotation has tuples: JSON and YAML have only lists."""
    if not isinstance(value, list | tuple):
        return value
    origin, options = _origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        tuples = [each for each in options if get_origin(each) is tuple or each is tuple]
        return _with_tuples(tuples[0], value) if tuples else value
    if origin is tuple and len(options) == 2 and options[1] is Ellipsis:
        return tuple(_with_tuples(options[0], item) for item in value)
    if origin is tuple:
        inner = (*options, *[Value] * len(value))
        return tuple(_with_tuples(each, item) for each, item in zip(inner, value, strict=False))
    return tuple(value) if annotation is tuple else value


class BaseHyperParameters(metaclass=ParametersMeta):
    """What all parameter classes have: `to_dict`, `from_dict`, `get`, JSON and YAML."""

    @classmethod
    def construct_test_params(cls) -> Self:
        """Returns parameters for a run of seconds; subclasses choose small sizes."""
        return cls()

    def check(self) -> None:
        """Raises a SettingsError where values do not fit together; subclasses add rules."""

    def to_dict(self, *, include_package_meta: bool = False) -> JsonObject:
        """Returns nested plain mappings with the class of each level under `_type`."""
        meta = {VERSION_KEY: quintain_version(), PACKAGE_KEY: "quintain"} if include_package_meta else {}
        values = {name: to_plain(getattr(self, name)) for name in type(self).annotations_of()}
        return {TYPE_KEY: type(self).__name__, **meta, **values}

    @classmethod
    def from_dict(cls, data: Mapping[str, object], *, ignore_extra_keys: bool = False) -> Self:
        """Makes the object that `to_dict` wrote, or one of a mapping by hand; `data` stays as it is."""
        named = data.get(TYPE_KEY, cls.__name__)
        chosen = cls if named == cls.__name__ else _classes.get(str(named))
        if chosen is None or not issubclass(chosen, cls):
            raise SettingsError(f'{cls.__name__}: found _type "{named}", expected {cls.__name__}', code="E0205")
        skipped = (TYPE_KEY, VERSION_KEY, PACKAGE_KEY, CODE_KEY)
        values = {name: value for name, value in data.items() if name not in skipped}
        if ignore_extra_keys:
            values = {name: value for name, value in values.items() if name in chosen.annotations_of()}
        made: Self = chosen.make(values)
        return made

    def to_json(self) -> str:
        """Returns `to_dict` with the version, as JSON with sorted keys."""
        return json.dumps(self.to_dict(include_package_meta=True), indent=2, sort_keys=True) + "\n"

    def to_yaml(self) -> str:
        """Returns `to_dict` with the version, as YAML."""
        return yaml.safe_dump(self.to_dict(include_package_meta=True), sort_keys=True)

    @classmethod
    def from_yaml(cls, text: str, source: str = "parameters") -> Self:
        """Reads YAML or JSON, which is YAML too."""
        value = parse(text, source, is_file=False).value
        if not isinstance(value, dict):
            raise SettingsError(f"{source}: found {value!r}, expected a mapping", code="E0205")
        return cls.from_dict(value)

    from_json = from_yaml

    def get(self, address: str) -> Value:
        """Returns the value at a dotted address, such as `rl.lr` or `agents.prover.agent_lr_factor.actor`."""
        value: Value = self
        for step in address.split("."):
            if isinstance(value, BaseHyperParameters) and step in vars(value):
                value = vars(value)[step]
            elif isinstance(value, Mapping) and step in value:
                value = value[step]
            else:
                raise KeyError(f"{address}: {type(value).__name__} has no {step!r}")
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and type(self) is type(other) and self.to_dict() == other.to_dict()


class SubParameters(BaseHyperParameters):
    """A group of parameters inside `HyperParameters`."""


def to_plain(value: Value) -> Value:
    """Returns a value as JSON has it; tuples become lists."""
    if isinstance(value, BaseHyperParameters | ParameterValue):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value


def field_name(class_name: str) -> str:
    """Returns the field of `HyperParameters` that belongs to a class: `MyTrainerParameters` is `my_trainer`.

    Example:
        >>> field_name("PureTextEiParameters")
        'pure_text_ei'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name.removesuffix("Parameters")).lower()


def register_parameter_class(cls: Class) -> Class:
    """Makes a parameter class known to `from_dict`; a `SubParameters` is a field of `HyperParameters` from now on."""
    if not issubclass(type(cls), ParametersMeta) or not dataclasses.is_dataclass(cls):
        raise SettingsError(f"{cls.__name__}: expected a dataclass that derives from SubParameters", code="E0205")
    _classes[cls.__name__] = cls  # type: ignore[assignment]
    return cls


def register_parameter_value_class(cls: Class) -> Class:
    """Makes a value class known to `from_dict`."""
    _value_classes[cls.__name__] = cls
    return cls


def get_parameter_class(name: str) -> type[BaseHyperParameters]:
    """Returns a registered parameter class by its name."""
    if name not in _classes:
        raise SettingsError(f'no parameter class is called "{name}"; see register_parameter_class', code="E0204")
    return _classes[name]  # type: ignore[return-value]


def registered_classes() -> dict[str, ParametersMeta]:
    """Returns every registered parameter class by its name."""
    return dict(_classes)
