"""The outline of a run file: its two halves, and the settings class of each path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, get_args, get_origin

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.settings.base import Settings
from quintain.settings.choice import Annotation, Choice
from quintain.settings.experiment import Experiment
from quintain.settings.run import RunSettings
from quintain.settings.yaml_text import KeyPath, Raw


class RunTree(Settings):
    """Joins `experiment`, which determines results, and `run`, which does not."""

    experiment: Experiment
    """All settings that may change results."""

    run: RunSettings = RunSettings()
    """Where and how the run executes."""


def class_at(path: KeyPath, values: Mapping[str, Raw]) -> type[Settings] | None:
    """Returns the settings class of the mapping at a path of the raw values, or None."""
    place = _place_at(path, values)
    return None if place is None else _governing_class(*place)


def _place_at(path: KeyPath, values: Mapping[str, Raw]) -> tuple[Annotation, Choice | None, Raw] | None:
    """Returns the type of a place, its part selection, if any, and its raw value; None if there is no such place."""
    annotation: Annotation = RunTree
    choice: Choice | None = None
    value: Raw = values
    for step in path:
        governing = _governing_class(annotation, choice, value)
        if governing is not None:
            field = governing.model_fields.get(str(step))
            if field is None:
                return None
            annotation, choice = _unwrap(field.annotation, field.metadata)
            value = value[step] if isinstance(value, Mapping) and step in value else field.default
        else:
            annotation, choice = _element(annotation, step)
            value = _item(value, step)
    return annotation, choice, value


def names_at(path: KeyPath, values: Mapping[str, Raw]) -> list[str]:
    """Returns the names of the settings of the mapping at a path; none if it is of an unknown type."""
    try:
        governing = class_at(path, values)
    except SettingsError:
        governing = None
    return list(governing.model_fields) if governing is not None else []


def types_with(path: KeyPath, values: Mapping[str, Raw]) -> str:
    """Returns the types of a part that have the setting at a path, in words, and its own type; empty if none has it."""
    *above, name = path
    try:
        place = _place_at(tuple(above), values)
        if place is None or (choice := place[1]) is None:
            return ""
        types = {each: registry.get(choice.kind, each).settings_class for each in registry.names(choice.kind)}
    except SettingsError:  # an unknown type, or a plugin that cannot be imported
        return ""
    own, found = choice.named(place[2]), [each for each, settings in types.items() if name in settings.model_fields]
    if not found or not isinstance(own, Mapping) or "type" not in own:
        return ""
    return f"{choice.kind} {', '.join(found)}, and this is {own['type']}"


def choices(values: Mapping[str, Raw]) -> Iterator[tuple[KeyPath, Choice]]:
    """Yields every place of the raw values where a part is selected."""
    return _choices_below((), RunTree, None, values)


def _choices_below(
    path: KeyPath, annotation: Annotation, choice: Choice | None, value: Raw
) -> Iterator[tuple[KeyPath, Choice]]:
    if choice is not None:
        yield path, choice
        return
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        if isinstance(value, Mapping):
            for name, below, mark in _branches(annotation):
                if name in value:
                    yield from _choices_below((*path, name), below, mark, value[name])
        return
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        yield from _choices_below((*path, step), *_element(annotation, step), item)


@cache
def _branches(settings_class: type[Settings]) -> tuple[tuple[str, Annotation, Choice | None], ...]:
    """Lists the fields below which a part can be selected; all others are single values."""
    fields = [(name, *_unwrap(field.annotation, field.metadata)) for name, field in settings_class.model_fields.items()]
    return tuple(
        (name, annotation, choice)
        for name, annotation, choice in fields
        if choice is not None or isinstance(annotation, type) or get_origin(annotation) in (dict, tuple)
    )


def _governing_class(annotation: Annotation, choice: Choice | None, value: Raw) -> type[Settings] | None:
    if choice is not None:
        return choice.settings_class(value)
    return annotation if isinstance(annotation, type) and issubclass(annotation, Settings) else None


def _unwrap(annotation: Annotation, metadata: Iterable[Annotation]) -> tuple[Annotation, Choice | None]:
    """Splits an annotation into its type and its part selection, if any."""
    if get_origin(annotation) is Annotated:
        annotation, *marks = get_args(annotation)
        metadata = [*metadata, *marks]
    return annotation, next((mark for mark in metadata if isinstance(mark, Choice)), None)


def _element(annotation: Annotation, step: str | int) -> tuple[Annotation, Choice | None]:
    """Returns the type of a mapping's values, or of a list's items."""
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        element, choice = _unwrap(arguments[1], ())
        return element, choice and choice.under(str(step))
    return _unwrap(arguments[0], ()) if get_origin(annotation) is tuple else (None, None)


def _item(value: Raw, step: str | int) -> Raw:
    if isinstance(value, Mapping):
        return value.get(str(step))
    if isinstance(value, list | tuple) and isinstance(step, int) and step < len(value):
        return value[step]
    return None
