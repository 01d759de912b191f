"""Checks a value against a JSON schema, for the keywords that our schemas use; an unknown keyword is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "number": (int, float),
    "integer": int,
}  # fmt: skip
ANNOTATIONS = frozenset({"title", "description", "default", "$defs"})


def schema_errors(value: Any, schema: dict[str, Any] | bool, root: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yields what is wrong with a value."""
    if isinstance(schema, bool):
        if not schema:
            yield f"{path}: not allowed"
        return
    for keyword, rule in schema.items():
        if keyword not in ANNOTATIONS:
            yield from _keyword_errors(keyword, rule, value, schema, root, path)


def _keyword_errors(
    keyword: str, rule: Any, value: Any, schema: dict[str, Any], root: dict[str, Any], path: str
) -> Iterator[str]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match keyword:
        case "$ref":
            yield from schema_errors(value, root["$defs"][rule.removeprefix("#/$defs/")], root, path)
        case "type":
            if not isinstance(value, TYPES[rule]) or (isinstance(value, bool) and rule in {"number", "integer"}):
                yield f"{path}: {value!r} is not of type {rule}"
        case "const" | "enum":
            if value not in ([rule] if keyword == "const" else rule):
                yield f"{path}: {value!r} is not {rule!r}"
        case "anyOf" | "oneOf":
            fitting = [each for each in rule if not list(schema_errors(value, each, root, path))]
            if not fitting or (keyword == "oneOf" and len(fitting) > 1):
                yield f"{path}: {value!r} fits {len(fitting)} of {len(rule)} alternatives"
        case "properties":
            for name in rule.keys() & (value if isinstance(value, dict) else {}):
                yield from schema_errors(value[name], rule[name], root, f"{path}.{name}")
        case "required":
            yield from (f"{path}: {name} is missing" for name in rule if isinstance(value, dict) and name not in value)
        case "additionalProperties":
            for name in (value if isinstance(value, dict) else {}).keys() - schema.get("properties", {}).keys():
                yield from schema_errors(value[name], rule, root, f"{path}.{name}")
        case "propertyNames":
            for name in value if isinstance(value, dict) else ():
                yield from schema_errors(name, rule, root, f"{path}.{name}")
        case "items":
            for i, item in enumerate(value if isinstance(value, list) else ()):
                yield from schema_errors(item, rule, root, f"{path}[{i}]")
        case "prefixItems":
            for i, (item, each) in enumerate(zip(value if isinstance(value, list) else (), rule, strict=False)):
                yield from schema_errors(item, each, root, f"{path}[{i}]")
        case "minItems" | "maxItems":
            if isinstance(value, list) and (len(value) < rule if keyword == "minItems" else len(value) > rule):
                yield f"{path}: {len(value)} items break {keyword} {rule}"
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
            fits = {"minimum": lambda: value >= rule, "maximum": lambda: value <= rule,
                    "exclusiveMinimum": lambda: value > rule, "exclusiveMaximum": lambda: value < rule}  # fmt: skip
            if is_number and not fits[keyword]():
                yield f"{path}: {value!r} breaks {keyword} {rule}"
        case "pattern":
            if isinstance(value, str) and not re.search(rule, value):
                yield f"{path}: {value!r} does not match {rule}"
        case "minLength":
            if isinstance(value, str) and len(value) < rule:
                yield f"{path}: {value!r} is too short"
        case _:
            raise NotImplementedError(f"JSON schema keyword {keyword!r} at {path}")
