"""Collects what a user set, from file, names, overrides and Python, and remembers who set each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from quintain.errors import SettingsError
from quintain.settings.base import PartSettings, Settings
from quintain.settings.yaml_text import KeyPath, Raw, read_file, shortened

DEFAULT = "default"
ALGORITHM_DEFAULT = "algorithm default"
ARGUMENT = "argument"
OVERRIDE = "override"
PYTHON = "python"


@dataclass(frozen=True)
class Origin:
    """Says who set a value: `label` in a listing, `place` at the head of an error (empty: nowhere)."""

    label: str
    place: str = ""


@dataclass
class Draft:
    """Holds the values a user set, before defaults and validation, each with its origin."""

    source: str = ""
    values: dict[str, Raw] = field(default_factory=dict)
    positions: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    permitted: set[str] | None = None
    """Names of code that may be imported for these values; None for values whose author is the user."""

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
        """Returns a draft that can change without this one."""
        return Draft(
            self.source,
            deepcopy(self.values),
            dict(self.positions),
            dict(self.origins),
            list(self.notes),
            self.permitted,
        )

    def get(self, path: KeyPath) -> Raw:
        """Returns the value at a path, None if nobody set it."""
        value: Raw = self.values
        for step in path:
            if not _has(value, step):
                return None
            value = value[step]
        return value

    def set(self, path: KeyPath, value: object, origin: Origin) -> None:
        """Sets one value (or a whole mapping, in place of what was there)."""
        parent = self._parent(path, origin)
        plain = _plain(value)
        # Only what stands there: looking through all records would cost as much as the whole file for each value.
        for below in _paths(parent[path[-1]] if _has(parent, path[-1]) else None):
            self.origins.pop(path + below, None)
            self.positions.pop(path + below, None)
        parent[path[-1]] = plain
        for below in _paths(plain):
            self.origins[path + below] = origin

    def rename(self, path: KeyPath, name: str) -> None:
        """Gives a key its canonical name, in the same place of its mapping."""
        parent, origin = self.get(path[:-1]), self.origin(path)
        entries = [(name if key == path[-1] else key, value) for key, value in parent.items()]
        parent.clear()
        parent.update(entries)
        for below in _paths(parent[name]):
            self.origins[(*path[:-1], name, *below)] = origin

    def origin(self, path: KeyPath) -> Origin:
        """Returns who set the value at a path."""
        if path in self.origins:
            return self.origins[path]
        if path in self.positions:
            line, column = self.positions[path]
            return Origin(f"{self.source}:{line}", f"{self.source}:{line}:{column}")
        return Origin(DEFAULT)

    def all_origins(self) -> Iterator[tuple[KeyPath, Origin]]:
        """Yields who set what, for every path that somebody set."""
        for path in {**self.positions, **self.origins}:
            yield path, self.origin(path)

    def place(self, path: KeyPath) -> str:
        """Returns where to look for a problem at a path: the nearest place above it that somebody wrote."""
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
    """Writes a path as users do, for a message."""
    return shortened(".".join(map(str, path)))


def _has(node: object, step: str | int) -> bool:
    if isinstance(node, list):
        return isinstance(step, int) and step < len(node)
    return isinstance(node, dict) and step in node


def _plain(value: object) -> Raw:
    """Takes settings objects apart, except parts, whose type depends on where they stand."""
    if isinstance(value, Settings) and not isinstance(value, PartSettings):
        return {name: _plain(getattr(value, name)) for name in value.model_fields_set}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _paths(value: object) -> Iterator[KeyPath]:
    yield ()
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        for below in _paths(item):
            yield (step, *below)


def _not_a_mapping(path: KeyPath, origin: Origin) -> SettingsError:
    place = f"{origin.place}: " if origin.place else ""
    return SettingsError(f"{place}{dotted(path)} is one value; set it as a whole", code="E0206")
