"""The base of all settings classes: frozen, strict, documented by the string below each field."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from quintain.errors import SettingsError
from quintain.settings.errors import problems_of, settings_error
from quintain.settings.yaml_text import KeyPath, parse
from quintain.typing import JsonObject, Keyword

_COUNT_SUFFIXES = {"k": 1_000, "M": 1_000_000}
_MAX_COUNT_TEXT = 40
_COUNT_TEXT = re.compile(r"(\d[\d_]*(?:\.\d+)?)([A-Za-z]+)")
_LINEAR = re.compile(r"lin_(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")
"""A schedule as rl-zoo writes it: linear to 0."""


def _accepts_tuple(annotation: object) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(_accepts_tuple(option) for option in get_args(annotation))
    return annotation is tuple or get_origin(annotation) is tuple


def plain(value: object) -> object:
    """Converts numbers and arrays of numpy, at any depth, to numbers and lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
    # By name: settings do not import numpy.
    return value.tolist() if type(value).__module__ == "numpy" and hasattr(value, "tolist") else value


class Settings(BaseModel):
    """Refuses unknown names, implicit conversions and later changes; numbers of numpy are numbers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    told_as: ClassVar[str] = ""
    """Name in errors; the class's own if empty."""

    _tuple_fields: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, /, **data: Keyword) -> None:
        """Raises a SettingsError with the sentence that the command line prints."""
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise _refusal(type(self), error) from None

    # Pydantic's mark of a constructor that only validates: a tree of settings is then validated as a whole.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Keyword) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls._tuple_fields = frozenset(
            name for name, field in cls.model_fields.items() if _accepts_tuple(field.annotation)
        )

    @model_validator(mode="before")
    @classmethod
    def _read_plain(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        values = {name: plain(value) for name, value in data.items()}
        # Strict validation wants tuples, YAML and JSON only know lists.
        fields = cls._tuple_fields
        return {name: tuple(v) if name in fields and isinstance(v, list) else v for name, v in values.items()}


def _refusal(settings_class: type[Settings], error: ValidationError) -> SettingsError:
    def names_at(path: KeyPath) -> list[str]:
        below: object = settings_class
        for step in path:
            field = below.model_fields.get(str(step)) if isinstance(below, type(Settings)) else None
            below = None if field is None else field.annotation
        return list(below.model_fields) if isinstance(below, type(Settings)) else []

    where = settings_class.told_as or settings_class.__name__
    return settings_error(problems_of(error.errors(include_url=False), names_at), lambda path: where)


class PartSettings(Settings):
    """Settings of one registered part; a field of the tree selects the part by its `type`."""

    type: str = ""
    """Registered name of the part, or module:Name for your own code."""

    behavior_defaults: ClassVar[JsonObject] = {}
    """Defaults that an environment of this kind sets for its behaviours; a user's file overrides them."""


def parse_count(value: object) -> object:
    """Parses 100k, 1.5M and 1e5 as integers; leaves other values to validation."""
    if isinstance(value, str) and len(value) <= _MAX_COUNT_TEXT and (match := _COUNT_TEXT.fullmatch(value)):
        number, suffix = match.groups()
        if suffix not in _COUNT_SUFFIXES:
            expected = 'found "{text}", expected an integer, such as {number}k or {number}M'
            raise PydanticCustomError("count", expected, {"text": value, "number": number})
        # Decimal, because 4.35 * 1000 is not a whole number in binary.
        scaled = Decimal(number) * _COUNT_SUFFIXES[suffix]
        if scaled != int(scaled):
            raise PydanticCustomError("count", "{text} is not a whole number", {"text": value})
        return int(scaled)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Count = Annotated[
    int,
    Field(gt=0),
    BeforeValidator(parse_count),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^\d[\d_]*(\.\d+)?[kM]$"},
            ]
        }
    ),
]
"""A positive integer, which may be written 100k, 1.5M or 1e5."""


_COUNT: TypeAdapter[int] = TypeAdapter(Count, config=ConfigDict(strict=True))


def read_count(value: object, place: str) -> int:
    """Returns a positive integer that is given as a number, also of numpy, or as on the command line, such as 10k."""
    try:
        return _COUNT.validate_python(
            plain(parse(value, place, is_file=False).value if isinstance(value, str) else value)
        )
    except ValidationError as error:
        raise settings_error(
            problems_of(error.errors(include_url=False), lambda path: ()), lambda path: place
        ) from None


def _parse_range(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _require_order(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise PydanticCustomError("range", "low {low} is above high {high}", {"low": value[0], "high": value[1]})
    return value


Range = Annotated[tuple[float, float], BeforeValidator(_parse_range), AfterValidator(_require_order)]
"""A low and a high, written [low, high]."""


class Schedule(Settings):
    """A value that moves from `start` to `end` over the run, or in steps; a bare number is constant.

    >>> Schedule(start=1.0, end=0.5, shape="linear").at(0.5)
    0.75
    >>> Schedule.model_validate({"start": 1.0, "steps": [[0.5, 0.1]], "warm_up": 0.1}).at(0.05)
    0.5
    """

    start: float
    """Value at the start of the run, or after the warm-up."""

    end: float | None = None
    """Value when the budget, or the part `until` of it, is spent; only for shapes that move."""

    shape: Literal["constant", "linear", "cosine", "steps"] = "constant"
    """Path from start to end, or in steps; linear when only an end is given."""

    until: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of the budget after which the end is reached and kept; only for shapes that move."""

    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Part of the budget in which the value rises from 0 to start, linearly."""

    steps: tuple[tuple[float, float], ...] = ()
    """Milestones [part of the budget, value]: from each on, its value holds until the next; without an end."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: object) -> object:
        if isinstance(data, int | float) and not isinstance(data, bool):
            return {"start": data}
        if isinstance(data, str) and (found := _LINEAR.fullmatch(data)):
            return {"start": float(found[1]), "end": 0.0, "shape": "linear"}
        if isinstance(data, Schedule):
            return data
        if not isinstance(data, Mapping):
            raise PydanticCustomError(
                "schedule", "expected a number or {start, end, shape, until, warm_up}, or {start, steps}"
            )
        given = dict(data)
        if isinstance(given.get("steps"), list | tuple):
            given["steps"] = tuple(tuple(step) if isinstance(step, list) else step for step in given["steps"])
        if "shape" not in given and (given.get("end") is not None or given.get("steps")):
            given["shape"] = "linear" if given.get("end") is not None else "steps"
        return given

    @model_validator(mode="after")
    def _parts_belong_to_shape(self) -> Schedule:
        moves = self.shape in ("linear", "cosine")
        if (self.end is not None) != moves:
            wrong = {"shape": self.shape, "expected": "an end" if moves else "no end"}
            raise PydanticCustomError("schedule", "shape {shape} goes with {expected}", wrong)
        if bool(self.steps) != (self.shape == "steps"):
            raise PydanticCustomError("schedule", "steps go with shape steps, and with no end")
        if not moves and self.until != 1.0:
            raise PydanticCustomError("schedule", "until goes with an end")
        if moves and self.warm_up >= self.until:
            raise PydanticCustomError(
                "schedule",
                "warm_up {warm_up} is not before until {until}",
                {"warm_up": self.warm_up, "until": self.until},
            )
        places = [self.warm_up, *(place for place, _ in self.steps), 1.0]
        if self.steps and any(later <= earlier for earlier, later in pairwise(places)):
            raise PydanticCustomError(
                "schedule", "expected steps at rising parts of the budget, after warm_up and below 1"
            )
        return self

    @model_serializer(mode="wrap")
    def _write_constant_as_number(self, handler: SerializerFunctionWrapHandler) -> Any:
        if self.shape == "constant" and not self.warm_up:
            return self.start
        # A schedule is written as before there were other fields: fingerprints depend on it.
        newer: dict[str, object] = {"until": 1.0, "warm_up": 0.0, "steps": ()}
        written: dict[str, object] = handler(self)
        return {
            name: value for name, value in written.items() if name not in newer or getattr(self, name) != newer[name]
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "number"}, handler(schema)]}

    @property
    def is_constant(self) -> bool:
        """Whether the value never changes."""
        return self.shape == "constant" and not self.warm_up

    @property
    def targets(self) -> tuple[float, ...]:
        """The values that it starts from, moves to or steps to."""
        return (self.start, *(() if self.end is None else (self.end,)), *(value for _, value in self.steps))

    def at(self, fraction: float) -> float:
        """Returns the value after `fraction` of the budget; past `until` it stays at the end."""
        if self.warm_up and fraction < self.warm_up:
            return self.start * max(fraction, 0.0) / self.warm_up
        if self.end is None:
            return next((value for place, value in reversed(self.steps) if fraction >= place), self.start)
        moved = min(max((fraction - self.warm_up) / (self.until - self.warm_up), 0.0), 1.0)
        if self.shape == "cosine":
            moved = 0.5 - 0.5 * math.cos(math.pi * moved)
        return (1.0 - moved) * self.start + moved * self.end


def constant(value: float) -> Schedule:
    """Returns a constant schedule, for the defaults of fields."""
    return Schedule(start=value)
