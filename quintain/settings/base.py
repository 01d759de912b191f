"""The base of all settings classes: frozen, strict, documented by the string below each field."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
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
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from quintain.typing import JsonObject, Keyword

_COUNT_SUFFIXES = {"k": 1_000, "M": 1_000_000}
_MAX_COUNT_TEXT = 40
_COUNT_TEXT = re.compile(r"(\d[\d_]*(?:\.\d+)?)([kM])")


def _accepts_tuple(annotation: object) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(_accepts_tuple(option) for option in get_args(annotation))
    return annotation is tuple or get_origin(annotation) is tuple


class Settings(BaseModel):
    """Refuses unknown names, implicit conversions and later changes."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    _tuple_fields: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Keyword) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls._tuple_fields = frozenset(
            name for name, field in cls.model_fields.items() if _accepts_tuple(field.annotation)
        )

    @model_validator(mode="before")
    @classmethod
    def _read_lists_as_tuples(cls, data: object) -> object:
        # Strict validation wants tuples, YAML and JSON only know lists.
        if not cls._tuple_fields or not isinstance(data, Mapping):
            return data
        lists = {name: tuple(data[name]) for name in cls._tuple_fields if isinstance(data.get(name), list)}
        return {**data, **lists} if lists else data


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


def _parse_range(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _require_order(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise PydanticCustomError("range", "low {low} is above high {high}", {"low": value[0], "high": value[1]})
    return value


Range = Annotated[tuple[float, float], BeforeValidator(_parse_range), AfterValidator(_require_order)]
"""A low and a high, written [low, high]."""


class Schedule(Settings):
    """A value that moves from `start` to `end` over the run; a bare number is constant.

    >>> Schedule(start=1.0, end=0.5, shape="linear").at(0.5)
    0.75
    """

    start: float
    """Value at the start of the run."""

    end: float | None = None
    """Value when the budget, or the part `until` of it, is spent; only for shapes that move."""

    shape: Literal["constant", "linear", "cosine"] = "constant"
    """Path from start to end; linear when only an end is given."""

    until: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of the budget after which the end is reached and kept; only for shapes that move."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: object) -> object:
        if isinstance(data, int | float) and not isinstance(data, bool):
            return {"start": data}
        if isinstance(data, Mapping) and data.get("end") is not None and "shape" not in data:
            return {**data, "shape": "linear"}
        if isinstance(data, Mapping | Schedule):
            return data
        raise PydanticCustomError("schedule", "expected a number or {start, end, shape, until}")

    @model_validator(mode="after")
    def _end_belongs_to_shape(self) -> Schedule:
        if (self.end is None) != (self.shape == "constant"):
            raise PydanticCustomError(
                "schedule",
                "shape {shape} goes with {expected}",
                {"shape": self.shape, "expected": "no end" if self.shape == "constant" else "an end"},
            )
        if self.end is None and self.until != 1.0:
            raise PydanticCustomError("schedule", "until goes with an end")
        return self

    @model_serializer(mode="wrap")
    def _write_constant_as_number(self, handler: SerializerFunctionWrapHandler) -> Any:
        if self.end is None:
            return self.start
        # A schedule over the whole budget is written as before there were others: fingerprints depend on it.
        return {name: value for name, value in handler(self).items() if name != "until" or value != 1.0}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "number"}, handler(schema)]}

    def at(self, fraction: float) -> float:
        """Returns the value after `fraction` of the budget; past `until` it stays at the end."""
        if self.end is None:
            return self.start
        moved = min(max(fraction / self.until, 0.0), 1.0)
        if self.shape == "cosine":
            moved = 0.5 - 0.5 * math.cos(math.pi * moved)
        return (1.0 - moved) * self.start + moved * self.end


def constant(value: float) -> Schedule:
    """Returns a constant schedule, for the defaults of fields."""
    return Schedule(start=value)
