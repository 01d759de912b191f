"""Brings a draft into its canonical form: short forms written out, aliases renamed, named code trusted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from quintain import registry
from quintain.errors import CheckpointError, SettingsError
from quintain.settings.base import PartSettings
from quintain.settings.layers import with_algorithm_defaults
from quintain.settings.outline import choices, class_at
from quintain.settings.sources import OVERRIDE, PYTHON, Draft, dotted
from quintain.settings.yaml_text import KeyPath

ALIASES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "env": {"num_envs": "num_lanes"},
        "budget": {"total_timesteps": "env_steps"},
        "algorithm": {
            "clip_range": "clip_coef",
            "ent_coef": "entropy_coef",
            "vf_coef": "value_coef",
            "n_epochs": "num_epochs",
            "lambd": "gae_lambda",
            "lr": "learning_rate",
            "minibatch_size": "batch_size",
            "utd_ratio": "updates_per_step",
            "buffer_init_steps": "learning_starts",
            "alpha": "entropy_coef",
            "init_entcoef": "initial_entropy_coef",
        },
        "rollout": {
            "n_steps": "num_steps",
            "buffer_size": "num_steps",
            "rollout_steps": "num_steps",
            "time_horizon": "num_steps",
            "train_freq": "num_steps",
            "n_step": "num_return_steps",
        },
        "reward_signal": {"discount": "gamma"},
    }
)
"""Spellings of other frameworks, by the block in which the canonical name lives."""


def normalize(draft: Draft, *, trusted: bool, allow: Collection[str]) -> None:
    """Brings a draft into its canonical form; before it imports any code it checks who asked for it."""
    _write_out_short_forms(draft)
    _check_trust(draft, trusted, allow)
    _rename_aliases(draft)


def behavior_path(draft: Draft) -> KeyPath:
    """Returns the path of the sole behaviour."""
    behaviors = draft.get(("experiment", "behaviors"))
    name = next(iter(behaviors)) if isinstance(behaviors, dict) and len(behaviors) == 1 else "default"
    return ("experiment", "behaviors", name)


def _keys(value: object) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _write_out_short_forms(draft: Draft) -> None:
    for path, choice in list(choices(draft.values)):
        value = draft.get(path)
        if isinstance(value, PartSettings):
            name = value.type or registry.name_of(choice.kind, type(value))
            draft.set(path, {"type": name, **_set_fields(value)}, draft.origin(path))
        elif isinstance(value, str):
            draft.set(path, {"type": value}, draft.origin(path))


def _set_fields(settings: PartSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.model_fields_set - {"type"}}


def _check_trust(draft: Draft, trusted: bool, allow: Collection[str]) -> None:
    for path, name in _named_code(draft.values, ()):
        given_by_user = trusted or draft.origin(path).label in (OVERRIDE, PYTHON)
        if not given_by_user and name not in allow:
            raise CheckpointError(
                f'{draft.place(path)}: {dotted(path)}: "{name}" would import code, which only a file '
                f"that you name yourself may do. If you trust it: --allow {name}",
                code="E0407",
            )
        note = f"note: {dotted(path)} imports code: {name}"
        if note not in draft.notes:
            draft.notes.append(note)


def _named_code(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        if step in ("type", "id") and isinstance(item, str) and ":" in item:
            yield (*path, step), item
        yield from _named_code(item, (*path, step))


def _rename_aliases(draft: Draft) -> None:
    blocks: list[tuple[KeyPath, str]] = [(path, choice.kind) for path, choice in choices(draft.values)]
    for path, kind in [*blocks, (("experiment", "budget"), "budget")]:
        aliases = ALIASES.get(kind, {})
        for alias in [key for key in _keys(draft.get(path)) if key in aliases]:
            if alias_applies(draft, path, alias, aliases[alias]):
                _rename(draft, (*path, alias), aliases[alias])


def canonical_path(draft: Draft, path: KeyPath) -> KeyPath:
    """Returns the path with the canonical name in place of an alias, and notes how it was understood."""
    for depth, step in enumerate(path):
        for aliases in ALIASES.values():
            canonical = aliases.get(str(step))
            if canonical is not None and alias_applies(draft, path[:depth], str(step), canonical):
                draft.notes.append(f"note: {step} is {dotted((*path[:depth], canonical))} here")
                return (*path[:depth], canonical, *path[depth + 1 :])
    return path


def alias_applies(draft: Draft, path: KeyPath, alias: str, canonical: str) -> bool:
    """Says whether the block at a path has the canonical setting and no setting called like the alias."""
    try:
        governing = class_at(path, with_algorithm_defaults(draft.values))
    except SettingsError:
        # The block is of an unknown type, which validation reports.
        return False
    return governing is not None and canonical in governing.model_fields and alias not in governing.model_fields


def _rename(draft: Draft, path: KeyPath, canonical: str) -> None:
    if canonical in draft.get(path[:-1]):
        message = f"{draft.place(path)}: {dotted(path)} and {canonical} are the same setting; keep {canonical}"
        raise SettingsError(message, code="E0203")
    origin = draft.origin(path)
    draft.rename(path, canonical)
    where = f"{origin.label}: " if origin.place and origin.label != OVERRIDE else ""
    draft.notes.append(f"note: {where}{path[-1]} is {dotted((*path[:-1], canonical))} here")
