"""Collects user settings from file, names, overrides and Python, with the origin of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from quintain.errors import SettingsError
from quintain.settings.base import PartSettings, Settings, plain
from quintain.settings.yaml_text import KeyPath, Raw, read_file, shortened

DEFAULT = "default"
ALGORITHM_DEFAULT = "algorithm default"
ARGUMENT = "argument"
OVERRIDE = "override"
PYTHON = "python"


@dataclass(frozen=True)
class Origin:
    """The origin of a value: `label` in a listing, `place` at the head of an error (empty: nowhere)."""

    label: str
    place: str = ""


@dataclass
class Draft:
    """User settings before defaults and validation, each with its origin."""

    source: str = ""
    values: dict[str, Raw] = field(default_factory=dict)
    positions: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    permitted: set[str] | None = None
    """Names of code that may be imported for these values; None for the user's own settings."""

    @classmethod
    def from_file(cls, path: str | Path) -> Draft:
        """Reads a settings file."""
        document = read_file(path)
        if not isinstance(document.value, dict):
            raise AssertionError("read_file returns mappings only")
        return cls(document.source, document.value, document.positions)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], origin: Origin) -> Draft:
        """Takes over a mapping that may contain settings objects."""
        draft = cls()
        for key, value in mapping.items():
            draft.set((key,), value, origin)
        return draft

    def copy(self) -> Draft:
        """Returns an independent copy of the draft."""
        return Draft(
            self.source,
            deepcopy(self.values),
            dict(self.positions),
            dict(self.origins),
            list(self.notes),
            self.permitted,
        )

    def get(self, path: KeyPath) -> Raw:
        """Returns the value at a path, or None if it is not set."""
        value: Raw = self.values
        for step in path:
            if not _has(value, step):
                return None
            value = value[step]
        return value

    def set(self, path: KeyPath, value: object, origin: Origin) -> None:
        """Sets one value, or replaces a whole mapping."""
        parent = self._parent(path, origin)
        plain = _plain(value)
        # Only what stands there: looking through all records would cost as much as the whole file for each value.
        for below in _paths(parent[path[-1]] if _has(parent, path[-1]) else None):
            self.origins.pop(path + below, None)
            self.positions.pop(path + below, None)
        parent[path[-1]] = plain
        for below in _paths(plain):
            self.origins[path + below] = origin

    def prepend(self, path: KeyPath, items: list[Raw]) -> None:
        """Puts defaults before the items of a list; what stood there keeps its origins."""
        parent, count = self.get(path), len(items)
        below = [(*path, *each) for each in _paths(parent) if each]
        for records in (self.positions, self.origins):
            moved = {key: records.pop(key) for key in below if key in records}
            for key, record in moved.items():
                records[(*path, int(key[len(path)]) + count, *key[len(path) + 1 :])] = record  # type: ignore[assignment]
        parent[:0] = items

    def rename(self, path: KeyPath, name: str) -> None:
        """Renames a key to its canonical name, at the same place of its mapping."""
        parent, origin = self.get(path[:-1]), self.origin(path)
        entries = [(name if key == path[-1] else key, value) for key, value in parent.items()]
        parent.clear()
        parent.update(entries)
        for below in _paths(parent[name]):
            self.origins[(*path[:-1], name, *below)] = origin

    def has(self, path: KeyPath) -> bool:
        """Whether a value is set at a path."""
        return _has(self.get(path[:-1]), path[-1])

    def remove(self, path: KeyPath) -> None:
        """Removes the value at a path, which is set."""
        value = self.get(path[:-1]).pop(path[-1])
        for below in _paths(value):
            self.origins.pop(path + below, None)
            self.positions.pop(path + below, None)

    def origin(self, path: KeyPath) -> Origin:
        """Returns the origin of the value at a path."""
        if path in self.origins:
            return self.origins[path]
        if path in self.positions:
            line, column = self.positions[path]
            return Origin(f"{self.source}:{line}", f"{self.source}:{line}:{column}")
        return Origin(DEFAULT)

    def all_origins(self) -> Iterator[tuple[KeyPath, Origin]]:
        """Yields the origin of every path that is set."""
        for path in {**self.positions, **self.origins}:
            yield path, self.origin(path)

    def place(self, path: KeyPath) -> str:
        """Returns the place of a problem at a path: that of the nearest set path above it."""
        for length in range(len(path), 0, -1):
            if place := self.origin(path[:length]).place:
                return place
        return self.source

    def _parent(self, path: KeyPath, origin: Origin) -> Raw:
        node: Raw = self.values
        for depth, step in enumerate(path[:-1]):
            if isinstance(node, dict):
                if step not in node:
                    node[str(step)] = {}
                    self.origins[path[: depth + 1]] = origin
                node = node[str(step)]
            elif _has(node, step):
                node = node[step]
            else:
                raise _not_a_mapping(path[:depth], origin)
        if not isinstance(node, dict) and not _has(node, path[-1]):
            raise _not_a_mapping(path[:-1], origin)
        return node


def dotted(path: KeyPath) -> str:
    """Formats a path for messages."""
    return shortened(".".join(map(str, path)))


def _has(node: object, step: str | int) -> bool:
    if isinstance(node, list):
        return isinstance(step, int) and step < len(node)
    return isinstance(node, dict) and step in node


def _plain(value: object) -> Raw:
    """Converts settings objects to mappings, except parts, whose type depends on their place."""
    if isinstance(value, Settings) and not isinstance(value, PartSettings):
        return {name: _plain(getattr(value, name)) for name in value.model_fields_set}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return plain(value)


def _paths(value: object) -> Iterator[KeyPath]:
    yield ()
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        for below in _paths(item):
            yield (step, *below)


def _not_a_mapping(path: KeyPath, origin: Origin) -> SettingsError:
    place = f"{origin.place}: " if origin.place else ""
    return SettingsError(f"{place}{dotted(path)} is one value; set it as a whole", code="E0206")
