"""Finds the parameters that a name or a pattern stands for, and the group that each of them is in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from quintain.algorithms.settings import ParameterGroup
from quintain.errors import SettingsError


def matching(patterns: Sequence[str], names: Collection[str], where: str) -> list[str]:
    """Returns the names that match a pattern, in their order; refuses a pattern that matches none."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names, n=3, cutoff=0.3) or list(names)[:3]
            raise SettingsError(
                f"{where}: no parameter is called {pattern!r}. Names are like {', '.join(near)}", code="E0229"
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def groups_by_parameter(groups: Mapping[str, ParameterGroup], names: Collection[str]) -> dict[str, str]:
    """Returns the name of the group of each parameter that is in one: of the first that matches it."""
    found: dict[str, str] = {}
    for group_name, group in groups.items():
        where = f"parameter_groups.{group_name}"
        patterns = (group.parameters,) if isinstance(group.parameters, str) else group.parameters
        new = [name for name in matching(patterns, names, where) if name not in found]
        if not new:
            raise SettingsError(
                f"{where}: all parameters that it matches are in groups before it. Move it up, or leave it out",
                code="E0229",
            )
        found |= dict.fromkeys(new, group_name)
    return found


def groups_within(
    groups: Mapping[str, ParameterGroup], names: Collection[str], within: Collection[str]
) -> dict[str, ParameterGroup]:
    """Returns the groups of some of the parameters, each with the names of its own among these."""
    members: dict[str, list[str]] = {}
    for name, group_name in groups_by_parameter(groups, names).items():
        if name in within:
            members.setdefault(group_name, []).append(name)
    return {key: groups[key].model_copy(update={"parameters": tuple(own)}) for key, own in members.items()}
