"""Validates a field by the settings class registered under its `type`: the tree imports no implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.settings.base import PartSettings

if TYPE_CHECKING:
    from quintain.typing import JsonObject

Annotation: TypeAlias = object
"""The type of a field as its class declares it, or an item of its Annotated."""


@dataclass(frozen=True)
class Choice:
    """Marks a field that selects a registered part of one kind.

    `default` is the type if none is given; with `named_by_key` the type is the key above the part. An optional one may
    be null.
    """

    kind: str
    default: str | None = None
    named_by_key: bool = False
    is_optional: bool = False

    def under(self, key: str) -> Choice:
        """Returns this field's rule for the part under the given key of a mapping."""
        return Choice(self.kind, default=key) if self.named_by_key else self

    def named(self, data: object) -> object:
        """Expands the short forms: a bare name, and a mapping without its type."""
        if isinstance(data, str):
            return {"type": data}
        if isinstance(data, Mapping) and self.default is not None and "type" not in data:
            return {"type": self.default, **data}
        return data

    def settings_class(self, data: object) -> type[PartSettings] | None:
        """Returns the settings class of this value, if it names a known part."""
        if isinstance(data, PartSettings):
            return type(data)
        complete = self.named(data)
        name = complete.get("type") if isinstance(complete, Mapping) else None
        return registry.get(self.kind, name).settings_class if isinstance(name, str) else None

    def __get_pydantic_core_schema__(self, source: Annotation, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate,
            metadata={"pydantic_js_functions": [self._json_schema]},
            serialization=core_schema.plain_serializer_function_ser_schema(
                _dump, info_arg=True, return_schema=core_schema.any_schema()
            ),
        )

    def _validate(self, data: object) -> PartSettings | None:
        if data is None and self.is_optional:
            return None
        if isinstance(data, PartSettings):
            return data if data.type else self._with_type(data)
        complete = self.named(data)
        if not isinstance(complete, Mapping):
            raise PydanticCustomError("choice", "expected a mapping with a type, or the name of a type")
        name = complete.get("type")
        if not isinstance(name, str):
            options = ", ".join(registry.names(self.kind))
            raise PydanticCustomError("choice_type", "type is missing; expected one of: {o}", {"o": options})
        try:
            settings_class = registry.get(self.kind, name).settings_class
        except SettingsError as error:
            raise PydanticCustomError("choice_name", "{m}", {"m": error.message, "code": error.code}) from error
        return settings_class.model_validate(complete)

    def _with_type(self, settings: PartSettings) -> PartSettings:
        return settings.model_copy(update={"type": registry.name_of(self.kind, type(settings))})

    def _json_schema(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        options: list[JsonObject] = []
        for name in registry.names(self.kind):
            part = registry.get(self.kind, name).settings_class
            option = dict(handler.resolve_ref_schema(handler(part.__pydantic_core_schema__)))
            option["properties"] = {**option["properties"], "type": {"const": name}}
            if name != self.default:
                option["required"] = ["type", *option.get("required", ())]
            options += [{"const": name}, option]
        # Of some kinds none ships; those that users register are not known here.
        options = options or [{"type": "object"}]
        return {"oneOf": [*options, {"type": "null"}] if self.is_optional else options}


def _dump(settings: PartSettings | None, info: core_schema.SerializationInfo) -> JsonObject | None:
    return None if settings is None else settings.model_dump(mode=info.mode)
