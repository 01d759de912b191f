"""Normalizes a draft: expands short forms, renames aliases, checks the trust in named code."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType

from quintain.core import registry, trust
from quintain.errors import CheckpointError, SettingsError
from quintain.settings.base import PartSettings
from quintain.settings.layers import with_algorithm_defaults
from quintain.settings.outline import choices, class_at
from quintain.settings.sources import OVERRIDE, PYTHON, Draft, dotted
from quintain.settings.yaml_text import KeyPath, Raw

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
"""Spellings of other frameworks, by the block of the canonical name."""


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
            draft.set(path, {"type": value}, draft.origin(path))


def _set_fields(settings: PartSettings) -> dict[str, Raw]:
    return {name: value for name, value in settings if name in settings.model_fields_set and name != "type"}


def _check_trust(draft: Draft, doubt: str) -> None:
    noted = set(draft.notes)
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
        if note not in noted:
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
                draft.notes.append(f"note: {step} is {dotted((*path[:depth], canonical))} here")
                return (*path[:depth], canonical, *path[depth + 1 :])
    return path


def alias_applies(values: Mapping[str, Raw], path: KeyPath, alias: str, canonical: str) -> bool:
    """Whether the block at a path has the canonical setting and none called like the alias."""
    try:
        governing = class_at(path, values)
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
