"""Reads and writes YAML 1.2 with the position of every key and with limits against hostile text.

Values are built from parser events: only str, int, float, bool, None, dict and list can result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import yaml
from yaml import events as yaml_events

from quintain.errors import SettingsError

MAX_BYTES = 1_000_000
MAX_ALIASES = 64
MAX_DEPTH = 32
MAX_VALUES = 10_000
MAX_DIGITS = 400
MAX_PROBLEMS = 20
MAX_SHOWN = 200

KeyPath = tuple[str | int, ...]
Raw: TypeAlias = Any
"""A value of a run file before validation: a YAML value, or a settings object that was passed in Python."""

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9](?:_?[0-9])*")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9](?:_?[0-9])*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class HasPosition(Protocol):
    """A mark of PyYAML's, in Python or in C."""

    line: int
    column: int


@dataclass(frozen=True)
class Document:
    """The value of one YAML text and the position of each key."""

    source: str
    value: Raw
    positions: dict[KeyPath, tuple[int, int]]


def read_file(path: str | Path) -> Document:
    """Reads a settings file: UTF-8, at most 1 MB, one mapping."""
    source = str(path)
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{source}: cannot read: {error.strerror}", code="E0210") from error
    if len(content) > MAX_BYTES:
        raise _refusal(f"{source}: larger than {MAX_BYTES:_} bytes, expected a settings file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refusal(f"{source}:{line}: not UTF-8 text; save the file as UTF-8") from error
    document = parse(text, source)
    if document.value is None:
        raise _refusal(f"{source}: empty, expected a mapping with experiment")
    if not isinstance(document.value, dict):
        raise _refusal(f"{source}:1:1: found a {_kind(document.value)}, expected a mapping with experiment")
    return document


def parse(text: str, source: str, *, is_file: bool = True) -> Document:
    """Parses one YAML document; reports up to 20 problems at once, with line and column if it is a file."""
    builder = _Builder(source, text, is_file)
    try:
        value = builder.build()
    except yaml.MarkedYAMLError as error:
        position = _position(error.problem_mark or error.context_mark)
        raise _refusal(f"{builder.place(position)}: {_syntax_problem(error, text)}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _refusal(f"{source}:{line}: character U+{ord(text[error.position]):04X} is not allowed") from error
    if builder.problems:
        raise _refusal(builder.problems[0], builder.problems[1:])
    return Document(source, value, builder.positions)


@dataclass
class _Builder:
    source: str
    text: str
    is_file: bool
    positions: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    anchors: dict[str, object] = field(default_factory=dict)
    num_aliases: int = 0
    num_values: int = 0

    def build(self) -> object:
        self.events: Iterator[yaml_events.Event] = yaml.parse(self.text, Loader=_Loader)
        value: object = None
        num_documents = 0
        for event in self.events:
            if isinstance(event, yaml_events.DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    raise _refusal(f"{self.place(_position(event.start_mark))}: a second document begins, expected one")
                value = self._value(next(self.events), ())
        return value

    def place(self, position: tuple[int, int]) -> str:
        return f"{self.source}:{position[0]}:{position[1]}" if self.is_file else self.source

    def _value(self, event: yaml_events.Event, path: KeyPath) -> object:
        if len(path) > MAX_DEPTH:
            raise _refusal(f"{self.place(_position(event.start_mark))}: nested more than {MAX_DEPTH} levels deep")
        self._count(event, 1)
        if isinstance(event, yaml_events.AliasEvent):
            return self._alias(event, path)
        assert isinstance(event, yaml_events.ScalarEvent | yaml_events.CollectionStartEvent)
        if event.tag is not None:
            self._report(event, f"tag {event.tag} is not allowed")
        value: object
        if isinstance(event, yaml_events.ScalarEvent):
            value = self._scalar(event)
        elif isinstance(event, yaml_events.MappingStartEvent):
            value = self._mapping(path)
        else:
            value = self._list(path)
        if event.anchor is not None:
            self.anchors[event.anchor] = value
        return value

    def _mapping(self, path: KeyPath) -> dict[str, object]:
        result: dict[str, object] = {}
        while not isinstance(event := next(self.events), yaml_events.MappingEndEvent):
            if not isinstance(event, yaml_events.ScalarEvent):
                raise _refusal(f"{self.place(_position(event.start_mark))}: a key must be a plain word")
            if event.tag is not None:
                self._report(event, f"tag {event.tag} is not allowed")
            key, below = event.value, (*path, event.value)
            if key in result:
                first = self.positions[below][0]
                self._report(event, f'key "{shortened(key)}" stands here again, first on line {first}; keep one')
            self.positions[below] = _position(event.start_mark)
            result[key] = self._value(next(self.events), below)
        return result

    def _list(self, path: KeyPath) -> list[object]:
        result: list[object] = []
        while not isinstance(event := next(self.events), yaml_events.SequenceEndEvent):
            below = (*path, len(result))
            self.positions[below] = _position(event.start_mark)
            result.append(self._value(event, below))
        return result

    def _scalar(self, event: yaml_events.ScalarEvent) -> object:
        is_quoted = bool(event.style)
        if is_quoted:
            return event.value
        try:
            return read_scalar(event.value)
        except ValueError as error:
            self._report(event, str(error))
            return None

    def _alias(self, event: yaml_events.AliasEvent, path: KeyPath) -> object:
        self.num_aliases += 1
        if self.num_aliases > MAX_ALIASES:
            raise _refusal(f"{self.place(_position(event.start_mark))}: more than {MAX_ALIASES} aliases")
        if event.anchor not in self.anchors:
            self._report(event, f"alias *{event.anchor} has no anchor before it")
            return None
        value = self.anchors[event.anchor]
        size, depth = _extent(value)
        self._count(event, size)
        if len(path) + depth > MAX_DEPTH:
            raise _refusal(f"{self.place(_position(event.start_mark))}: nested more than {MAX_DEPTH} levels deep")
        return deepcopy(value)

    def _count(self, event: yaml_events.Event, amount: int) -> None:
        self.num_values += amount
        if self.num_values > MAX_VALUES:
            raise _refusal(f"{self.place(_position(event.start_mark))}: more than {MAX_VALUES:_} values")

    def _report(self, event: yaml_events.Event, what: str) -> None:
        self.problems.append(f"{self.place(_position(event.start_mark))}: {what}")
        if len(self.problems) >= MAX_PROBLEMS:
            raise _refusal(self.problems[0], self.problems[1:])


def read_scalar(text: str) -> object:
    """Reads a plain scalar as YAML 1.2 does, and `1_000` as an integer; a number must be finite."""
    first = text[:1]
    if first.isdigit() or first in ("+", "-", "."):
        if len(text) > MAX_DIGITS and _FLOAT.fullmatch(text):
            raise ValueError(f"{text[:20]}… has more than {MAX_DIGITS} digits")
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if math.isinf(number):
                raise ValueError(f"{shortened(text)} is too large for a number")
            return number
        if _NOT_FINITE.fullmatch(text):
            raise ValueError(f"{text} is not a finite number")
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text[0] in "tT"
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes exactly those strings that `read_scalar` would not give back as they are."""

    yaml_implicit_resolvers: dict[str, object] = {}  # noqa: RUF012 the base class declares it as a plain attribute


for _tag, _pattern in (
    ("null", _NULL),
    ("bool", _BOOL),
    ("int", _INT),
    ("float", _FLOAT),
    ("float", _NOT_FINITE),
):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern.pattern})$"), None)


def write_flow(value: object) -> str:
    """Writes a value on one line, such that `parse` gives it back."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=math.inf, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def shortened(text: str) -> str:
    """Returns a text from a file or a command line, shortened for a one-line message."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _position(mark: HasPosition | None) -> tuple[int, int]:
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)


def _extent(value: object) -> tuple[int, int]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    extents = [_extent(child) for child in children]
    return 1 + sum(size for size, _ in extents), 1 + max((depth for _, depth in extents), default=0)


def _syntax_problem(error: yaml.MarkedYAMLError, text: str) -> str:
    problem = " ".join(filter(None, [error.context, error.problem]))
    lines = text.split("\n")
    mark = error.problem_mark
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "a tab stands in the indentation; use spaces"
    return problem


def _kind(value: object) -> str:
    return {list: "list", str: "string", bool: "boolean"}.get(type(value), "number")


def _refusal(first: str, others: list[str] | None = None) -> SettingsError:
    count = f" (first of {len(others) + 1} problems)" if others else ""
    return SettingsError(first + count, code="E0202", notes=others or ())
