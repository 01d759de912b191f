"""Normalizes a draft: expands short forms, renames aliases, checks the trust in named code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice

from quintain.core import registry, trust
from quintain.errors import CheckpointError, SettingsError
from quintain.settings.base import PartSettings, Schedule
from quintain.settings.layers import env_defaults, with_algorithm_defaults
from quintain.settings.outline import choices, class_at
from quintain.settings.sources import DEFAULT, OVERRIDE, PYTHON, Draft, Origin, dotted
from quintain.settings.spellings import ALIASES, BY_SPACES, GRADIENT_STEPS, NET_ARCH
from quintain.settings.yaml_text import KeyPath, Raw

NO_DEFAULTS = "none"
"""The type of an event or writer that does nothing, and leaves out the default ones."""

MAX_PARTS = 1_000
"""Maximum number of parts in one tree: far more than any run has, and few enough to look up each."""


def normalize(draft: Draft, *, doubt: str = "") -> None:
    """Normalizes a draft; before importing any code it checks whether the settings are trusted.

    `doubt` says why values whose code is limited to permitted names are not taken for the user's own.
    """
    _write_out_short_forms(draft)
    _check_trust(draft, doubt)
    _rename_aliases(draft)


def behavior_path(draft: Draft) -> KeyPath:
    """Returns the path of the sole behaviour."""
    behaviors = draft.get(("experiment", "behaviors"))
    name = next(iter(behaviors)) if isinstance(behaviors, dict) and len(behaviors) == 1 else "default"
    return ("experiment", "behaviors", name)


def _keys(value: object) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _write_out_short_forms(draft: Draft) -> None:
    parts = list(islice(choices(draft.values), MAX_PARTS + 1))
    if len(parts) > MAX_PARTS:
        path = parts[-1][0]
        raise SettingsError(
            f"{draft.place(path)}: {dotted(path)}: more than {MAX_PARTS} parts are named, expected fewer", code="E0205"
        )
    for path, choice in parts:
        value = draft.get(path)
        if isinstance(value, PartSettings):
            name = value.type or registry.name_of(choice.kind, type(value))
            draft.set(path, {"type": name, **_set_fields(value)}, draft.origin(path))
        elif isinstance(value, str):
            is_foreign = choice.kind == "policy" and value in BY_SPACES
            settings = of_stable_baselines(value, draft.notes) if is_foreign else {"type": value}
            draft.set(path, settings, draft.origin(path))
        written = draft.get((*path, "type"))
        if isinstance(written, str) and not written.islower():
            draft.set((*path, "type"), registry.as_registered(choice.kind, written), draft.origin((*path, "type")))


def of_stable_baselines(policy: str, notes: list[str]) -> dict[str, Raw]:
    """Returns the settings for a policy of Stable-Baselines3: its networks follow from the algorithm and the spaces."""
    settings: dict[str, Raw] = {"memory": {"cell": "lstm"}} if "Lstm" in policy else {}
    instead = "memory={cell: lstm} here" if settings else "left out: networks follow from the algorithm and the spaces"
    notes.append(f"note: policy {policy} is {instead}")
    return settings


def _set_fields(settings: PartSettings) -> dict[str, Raw]:
    return {name: value for name, value in settings if name in settings.model_fields_set and name != "type"}


def _check_trust(draft: Draft, doubt: str) -> None:
    folder, noted = draft.get(("run", "code_dir")), set(draft.notes)
    if draft.permitted is None and isinstance(folder, str):
        trust.search(os.path.abspath(folder))
    for path, name in trust.code_names(draft.values):
        if draft.permitted is not None:
            if draft.origin(path).label in (OVERRIDE, PYTHON):
                draft.permitted.add(name)
            elif name not in draft.permitted:
                why = f", and {doubt}" if doubt else ", which only a file that you name yourself may do"
                raise CheckpointError(
                    f'{draft.place(path)}: {dotted(path)}: "{name}" would import code{why}. '
                    f"If you trust it: --allow {name}",
                    code="E0407",
                )
        note = f"note: {dotted(path)} imports code: {name}"
        if note not in noted and not name.startswith("quintain."):
            noted.add(note)
            draft.notes.append(note)


def _rename_aliases(draft: Draft) -> None:
    blocks: list[tuple[KeyPath, str]] = [(path, choice.kind) for path, choice in choices(draft.values)]
    # Names of settings change below, but not what they are settings of.
    complete = with_algorithm_defaults(draft.values)
    for path, kind in [*blocks, (("experiment", "budget"), "budget")]:
        aliases = ALIASES.get(kind, {})
        for alias in [key for key in _keys(draft.get(path)) if key in aliases]:
            if alias_applies(complete, path, alias, aliases[alias]):
                _rename(draft, (*path, alias), aliases[alias])


def canonical_path(draft: Draft, path: KeyPath) -> KeyPath:
    """Returns the path with the canonical name in place of an alias, and notes the replacement."""
    complete = with_algorithm_defaults(draft.values)
    for depth, step in enumerate(path):
        for aliases in ALIASES.values():
            canonical = aliases.get(str(step))
            if canonical is not None and alias_applies(complete, path[:depth], str(step), canonical):
                found = (*path[:depth], *canonical.split("."))
                draft.notes.append(f"note: {step} is {dotted(found)} here")
                return (*found, *path[depth + 1 :])
    return path


def converted(draft: Draft, alias: str, value: object, place: str) -> object:
    """Returns the value of the setting that an alias stands for."""
    if alias == GRADIENT_STEPS:
        return _updates_per_step(draft, value)
    if alias != NET_ARCH or not isinstance(value, Mapping):
        return value
    first, *others = value.values()
    if any(sizes != first for sizes in others):
        raise SettingsError(
            f"{place}: {alias} has {len(value)} different lists, and the networks of a policy have equal hidden layers "
            f"here; write hidden_sizes={first}, or bring a network of your own (network=module:Name)",
            code="E0205",
        )
    return first


def _updates_per_step(draft: Draft, value: object) -> object:
    """Converts `gradient_steps`, which counts per rollout, to gradient steps per environment step."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if value == -1:
        return 1.0
    complete = Draft(values=dict(with_algorithm_defaults(draft.values)))
    counts = [
        found.model_fields[name].default if given is None else given
        for path, name in ((("experiment", "env"), "num_lanes"), ((*behavior_path(draft), "rollout"), "num_steps"))
        if (found := class_at(path, complete.values)) is not None and name in found.model_fields
        for given in [complete.get((*path, name))]
    ]
    num_steps = 1
    for count in counts:
        num_steps *= count if isinstance(count, int) else 1
    return value / num_steps


def missing_parts(draft: Draft, path: KeyPath, value: Raw) -> list[str]:
    """Returns the default events or writers that a list of them does not name; none for [] and with `none` in it."""
    is_list = path == ("run", "writers") or (path[:2] == ("experiment", "behaviors") and path[3:] == ("events",))
    if not is_list or not isinstance(value, list | tuple) or not value:
        return []
    kind = "event" if path[-1] == "events" else "writer"
    types = [
        item.type or registry.name_of(kind, type(item))
        if isinstance(item, PartSettings)
        else item.get("type")
        if isinstance(item, Mapping)
        else item
        for item in value
    ]
    if NO_DEFAULTS in types:
        return []
    preferred = env_defaults(draft.values).get(path[:-1], {}).get("events")
    usual = _default_at(draft, path) if path[-1] == "writers" or preferred is None else preferred
    return [name for name in usual if name not in types] if isinstance(usual, list | tuple) else []


def add_default_parts(draft: Draft) -> None:
    """Puts default events and writers that a file does not name before those that it names."""
    behaviors = draft.get(("experiment", "behaviors"))
    for path in (("run", "writers"), *(("experiment", "behaviors", name, "events") for name in _keys(behaviors))):
        if missing := missing_parts(draft, path, draft.get(path)):
            draft.prepend(path, list(missing))


def set_one(draft: Draft, path: KeyPath, value: object, origin: Origin) -> None:
    """Sets one setting; a field of a schedule that is a bare number, or of a part that is a bare name, opens it."""
    above = path[:-1]
    governing = class_at(above, with_algorithm_defaults(draft.values))
    if isinstance(name := draft.get(above), str) and governing is not None and issubclass(governing, PartSettings):
        draft.set(above, {"type": name}, draft.origin(above))
    if governing is Schedule and not isinstance(draft.get(above), dict):
        present = _default_at(draft, above) if draft.get(above) is None else draft.get(above)
        if path[-1] == "start" and not (isinstance(present, Schedule) and not present.is_constant):
            path = above
        elif isinstance(present, int | float | Schedule):
            draft.set(above, present if isinstance(present, Schedule) else {"start": present}, draft.origin(above))
    draft.set(path, value, origin)


def _default_at(draft: Draft, path: KeyPath) -> object:
    """Returns the default value of a setting."""
    above = class_at(path[:-1], with_algorithm_defaults(draft.values))
    field = above.model_fields.get(str(path[-1])) if above is not None else None
    return field.default if field is not None else None


def alias_applies(values: Mapping[str, Raw], path: KeyPath, alias: str, canonical: str) -> bool:
    """Whether the block at a path has the canonical setting and none called like the alias."""
    try:
        governing = class_at(path, values)
    except SettingsError:
        # The block is of an unknown type, which validation reports.
        return False
    names = () if governing is None else governing.model_fields
    return canonical.partition(".")[0] in names and alias not in names


def _rename(draft: Draft, path: KeyPath, canonical: str) -> None:
    found: KeyPath = (*path[:-1], *canonical.split("."))
    if draft.has(found) and draft.origin(found).label != DEFAULT:
        message = f"{draft.place(path)}: {dotted(path)} and {canonical} are the same setting; keep {canonical}"
        raise SettingsError(message, code="E0203")
    origin, value = draft.origin(path), draft.get(path)
    value = converted(draft, str(path[-1]), value, f"{draft.place(path)}: {dotted(path)}")
    if len(found) == len(path):
        draft.rename(path, canonical)
        if value != draft.get(found):
            draft.set(found, value, origin)
    else:
        draft.remove(path)
        set_one(draft, found, value, origin)
    where = f"{origin.label}: " if origin.place and origin.label != OVERRIDE else ""
    draft.notes.append(f"note: {where}{path[-1]} is {dotted(found)} here")
