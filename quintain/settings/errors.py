"""Converts validation findings to one SettingsError: place, setting, problem, suggestion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic_core import ErrorDetails

from quintain.errors import SettingsError
from quintain.settings.spellings import ALIASES, COUNTERPARTS
from quintain.settings.yaml_text import MAX_PROBLEMS, KeyPath, shortened

_EXPECTED: Mapping[str, str] = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "finite_number": "a finite number",
}
_EXPECTED_BOUND: Mapping[str, tuple[str, str]] = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
    "literal_error": ("one of", "expected"),
}


@dataclass(frozen=True)
class Problem:
    """One problem at one path."""

    path: KeyPath
    what: str
    code: str = "E0205"


def settings_error(problems: Sequence[Problem], place: Callable[[KeyPath], str]) -> SettingsError:
    """Joins problems to one error: the first is its message, up to 19 more are its notes."""
    lines = [_line(problem, place) for problem in problems[:MAX_PROBLEMS]]
    message = lines[0]
    if len(lines) > 1:
        shown = f", {MAX_PROBLEMS} shown" if len(problems) > MAX_PROBLEMS else ""
        message += f" (first of {len(problems)} problems{shown})"
    return SettingsError(message, code=problems[0].code, notes=lines[1:])


def problems_of(
    found: Sequence[ErrorDetails],
    names_at: Callable[[KeyPath], Sequence[str]],
    types_with: Callable[[KeyPath], str] = lambda path: "",
) -> list[Problem]:
    """Converts pydantic's findings to messages for users.

    `names_at` returns the settings that there are at a path, and `types_with` names other types of the part that have
    a setting.
    """
    # What is not shown is only counted: to look for the name that was meant takes far longer than to find it unknown.
    return [
        _problem(each, names_at, types_with) if i < MAX_PROBLEMS else Problem(each["loc"], "")
        for i, each in enumerate(found)
    ]


def _problem(
    details: ErrorDetails, names_at: Callable[[KeyPath], Sequence[str]], types_with: Callable[[KeyPath], str]
) -> Problem:
    path: KeyPath = details["loc"]
    kind, context = details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        *above, block, name = ("", *path)
        beside = (each for each in names_at(tuple(above[1:])) if each != block) if len(path) > 1 else ()
        home = next((each for each in beside if name in names_at((*above[1:], each))), None)
        place = f"{home}: {home}.{name}" if home else types_with(path)
        hint = f"it belongs to {place}" if place else _nearest(str(name), names_at(path[:-1]))
        return Problem(path, f"unknown setting; {hint}", "E0203")
    if kind == "missing":
        return Problem(path, "not set, and it has no default")
    if kind == "choice_name":
        return Problem((*path, "type"), details["msg"], context["code"])
    return Problem(path, value_problem(details))


def value_problem(details: ErrorDetails) -> str:
    """Describes a value's problem for users."""
    kind, context = details["type"], details.get("ctx", {})
    if kind in _EXPECTED:
        return f"found {_shown(details['input'])}, expected {_EXPECTED[kind]}"
    if kind in _EXPECTED_BOUND:
        words, key = _EXPECTED_BOUND[kind]
        return f"found {_shown(details['input'])}, expected {words} {context[key]}"
    return details["msg"]


def _nearest(name: str, known: Sequence[str]) -> str:
    """Suggests the name that an unknown setting may stand for."""
    if counterpart := COUNTERPARTS.get(name):
        return counterpart
    pairs = [pair for block in ALIASES.values() for pair in block.items()]
    aliases = {alias: ours for alias, ours in pairs if ours in known and alias not in known}
    if near := get_close_matches(shortened(name), [*known, *aliases], n=1):
        return f'did you mean "{aliases.get(near[0], near[0])}"?'
    return f"expected one of: {', '.join(known)}" if known else "remove it"


def _line(problem: Problem, place: Callable[[KeyPath], str]) -> str:
    return ": ".join(filter(None, [place(problem.path), shortened(".".join(map(str, problem.path))), problem.what]))


def _shown(value: object) -> str:
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    if isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    return text if len(text) <= 60 else text[:57] + "..."
