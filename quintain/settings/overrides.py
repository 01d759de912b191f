"""Parses `key=value` from the command line and finds the setting of a short key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from quintain.errors import SettingsError
from quintain.settings.layers import with_algorithm_defaults
from quintain.settings.normalize import (
    NO_DEFAULTS,
    alias_applies,
    behavior_path,
    canonical_path,
    converted,
    missing_parts,
    of_stable_baselines,
    set_one,
)
from quintain.settings.outline import RunTree, class_at, types_with
from quintain.settings.sources import OVERRIDE, Draft, Origin, dotted
from quintain.settings.spellings import ALIASES, BY_SPACES, COUNTERPARTS, GRADIENT_STEPS
from quintain.settings.yaml_text import KeyPath, parse, shortened

_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_TYPE_KEYS = frozenset({"type", "env", "trainer", "policy", "algorithm", "rollout", "placement", "network"})


def apply_override(draft: Draft, text: str) -> None:
    """Applies one `key=value`."""
    place = f"override {shortened(text)}"
    key, separator, value_text = text.partition("=")
    if not separator or not _KEY.fullmatch(key):
        raise SettingsError(f"{place}: expected key=value, such as seed=1", code="E0206")
    if not value_text.strip():
        raise SettingsError(f"{place}: no value; write {key}=null for none", code="E0206")
    set_key(draft, key, parse(value_text, place, is_file=False).value, place, Origin(OVERRIDE, place))


def set_key(draft: Draft, key: str, value: object, place: str, origin: Origin, *, adds_defaults: bool = True) -> None:
    """Sets the setting that a key names: a path, a short name or an alias.

    Events and writers are added to the default ones, or else set as a whole.
    """
    path = resolve_key(draft, key, place)
    if isinstance(value, list | tuple) and (missing := missing_parts(draft, path, value)):
        value = [*(missing if adds_defaults else [NO_DEFAULTS]), *value]
    value = converted(draft, key.rpartition(".")[2], value, place)
    if path == (*behavior_path(draft), "policy") and isinstance(value, str) and value in BY_SPACES:
        for name, setting in of_stable_baselines(value, draft.notes).items():
            set_one(draft, (*path, name), setting, origin)
    else:
        set_one(draft, path, value, origin)


def types_first(overrides: Iterable[str]) -> list[str]:
    """Orders overrides: a part before its settings are looked up, and last a count that depends on others."""

    def place(text: str) -> int:
        name = text.partition("=")[0].rpartition(".")[2]
        return 0 if name in _TYPE_KEYS else 2 if name == GRADIENT_STEPS else 1

    return sorted(overrides, key=place)


def resolve_key(draft: Draft, key: str, place: str) -> KeyPath:
    """Finds the path of a key: literal, by alias, or as the only setting of that name."""
    first, _, rest = key.partition(".")
    if first in RunTree.model_fields:
        return canonical_path(draft, _split(draft, key))
    below = tuple(_step(step) for step in rest.split(".")) if rest else ()
    found = [*_aliased(draft, first), *_matching(draft, first)]
    if len(found) == 1:
        return canonical_path(draft, (*found[0], *below))
    if found:
        candidates = ", ".join(dotted((*path, *below)) for path in found)
        raise SettingsError(f'{place}: "{shortened(key)}" may mean {candidates}; write the one you mean', code="E0206")
    if counterpart := COUNTERPARTS.get(first):
        raise SettingsError(f'{place}: no setting is called "{first}"; {counterpart}', code="E0203")
    known = {name for scope in _scopes(draft) for name in _names(draft, scope)}
    aliases = {alias: canonical for block in ALIASES.values() for alias, canonical in block.items()}
    if first in aliases:
        usable = [*known, *(alias for alias, canonical in aliases.items() if canonical in known)]
        near = get_close_matches(first, usable, n=1, cutoff=0.8)
        hint = f'did you mean "{near[0]}"?' if near else "see: quintain config show"
        raise SettingsError(
            f'{place}: "{first}" is {aliases[first]} here, and no part of this run has it; {hint}', code="E0203"
        )
    nearest = get_close_matches(first, known | aliases.keys(), n=1)
    longer = [dotted((block, first)) for block in _names(draft, ("run",)) if first in _names(draft, ("run", block))]
    complete = with_algorithm_defaults(draft.values)
    others = [types_with((*path, first), complete) for path in _blocks(draft).values()]
    if not longer and (other := next(filter(None, others), None)):
        raise SettingsError(f'{place}: no setting is called "{first}" here; it belongs to {other}', code="E0203")
    nearest = longer or nearest
    hint = f'did you mean "{nearest[0]}"?' if nearest else "see: quintain config show"
    raise SettingsError(f'{place}: no setting is called "{shortened(first)}"; {hint}', code="E0203")


def _blocks(draft: Draft) -> dict[str, KeyPath]:
    behavior = behavior_path(draft)
    return {
        "env": ("experiment", "env"),
        "budget": ("experiment", "budget"),
        "policy": (*behavior, "policy"),
        "algorithm": (*behavior, "algorithm"),
        "rollout": (*behavior, "rollout"),
        "trainer": (*behavior, "trainer"),
        "reward_signal": (*behavior, "reward_signals", "extrinsic"),
        "placement": ("run", "placement"),
        "checkpoint": ("run", "checkpoint"),
    }


def _scopes(draft: Draft) -> list[KeyPath]:
    return [("experiment",), ("run",), behavior_path(draft), *_blocks(draft).values()]


def _names(draft: Draft, scope: KeyPath) -> Iterable[str]:
    try:
        governing = class_at(scope, with_algorithm_defaults(draft.values))
    except SettingsError as error:
        chosen = (*scope, "type")
        message = f"{draft.place(chosen)}: {dotted(chosen)}: {error.message}"
        raise SettingsError(message, code=error.code) from error
    return governing.model_fields if governing is not None else ()


def _aliased(draft: Draft, alias: str) -> Iterator[KeyPath]:
    blocks, complete = _blocks(draft), with_algorithm_defaults(draft.values)
    for block, aliases in ALIASES.items():
        if alias in aliases and alias_applies(complete, blocks[block], alias, aliases[alias]):
            yield (*blocks[block], alias)


def _matching(draft: Draft, name: str) -> Iterator[KeyPath]:
    for scope in _scopes(draft):
        if name in _names(draft, scope):
            yield (*scope, name)


def _split(draft: Draft, key: str) -> KeyPath:
    """Splits a dotted key; the name of a behaviour may itself contain dots."""
    behavior = behavior_path(draft)
    prefix = ".".join(map(str, behavior))
    if key == prefix or key.startswith(prefix + "."):
        rest = key[len(prefix) + 1 :]
        return (*behavior, *(_step(step) for step in rest.split("."))) if rest else behavior
    return tuple(_step(step) for step in key.split("."))


def _step(text: str) -> str | int:
    return int(text) if text.isdecimal() else text
