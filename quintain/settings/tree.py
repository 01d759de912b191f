"""Defines RunFile: one validated tree of settings from a file, two names or Python, with the origin of each value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from quintain.core import registry, trust
from quintain.core.budget import Budget
from quintain.errors import SettingsError
from quintain.settings.annotate import annotated_yaml, origins_behind
from quintain.settings.errors import problems_of, settings_error
from quintain.settings.experiment import Experiment
from quintain.settings.fingerprint import fingerprint_of, leaves
from quintain.settings.layers import algorithm_defaults, with_algorithm_defaults
from quintain.settings.normalize import add_default_parts, normalize
from quintain.settings.outline import RunTree, names_at, types_with
from quintain.settings.overrides import apply_override, set_key, types_first
from quintain.settings.placement_rules import notes_on_placement
from quintain.settings.rules import broken_rules
from quintain.settings.run import RunSettings
from quintain.settings.secrets import literal_secrets
from quintain.settings.sources import ALGORITHM_DEFAULT, ARGUMENT, DEFAULT, OVERRIDE, PYTHON, Draft, Origin, dotted
from quintain.settings.tuned import Tuned, tuned_settings

if TYPE_CHECKING:
    from quintain.typing import JsonObject


@dataclass(frozen=True)
class RunFile:
    """All settings of one run, validated; equality ignores origins.

    >>> run_file = RunFile.from_names("ppo", "CartPole-v1", "num_lanes=16")
    >>> run_file.experiment.env.num_lanes, run_file.origins["experiment.env.num_lanes"]
    (16, 'override')
    """

    experiment: Experiment
    run: RunSettings
    _draft: Draft = field(compare=False, repr=False)

    @property
    def budget(self) -> Budget:
        """The budget of the run."""
        return Budget(self.experiment.budget.env_steps, self.experiment.budget.updates)

    @property
    def trained(self) -> str:
        """The type of the loop, or of the first behaviour's algorithm."""
        if self.experiment.loop is not None:
            return self.experiment.loop.type
        return next(iter(self.experiment.behaviors.values())).algorithm.type

    @classmethod
    def load(
        cls,
        path: str | Path,
        *overrides: str,
        trusted: bool = True,
        allow: Collection[str] = (),
        doubt: str = "",
        is_complete: bool = False,
    ) -> RunFile:
        """Reads a settings file; an untrusted one may name only code that `allow` lists.

        `doubt` says why it is not trusted. Events and writers are added to the default ones unless it `is_complete`.
        """
        draft = Draft.from_file(path)
        return cls._resolve(draft, overrides, trusted, allow, doubt=doubt, adds_defaults=not is_complete)

    @classmethod
    def from_names(
        cls,
        algorithm: str,
        env: str,
        *overrides: str,
        tuned: bool = False,
        trusted: bool = True,
        allow: Collection[str] = (),
    ) -> RunFile:
        """Makes the settings of `train ALGORITHM ENV`: a registered environment, TYPE/ID, or a Gymnasium id.

        With `tuned` the settings that ship for this pair lie below the overrides.
        """
        try:
            chosen = registry.get("algorithm", algorithm)
        except SettingsError:
            if env.lower() in registry.names("algorithm"):
                raise SettingsError(f"the algorithm comes first: {env} {algorithm}", code="E0201") from None
            raise
        experiment = {
            "env": registry.env_named(env),
            "behaviors": {"default": {"algorithm": {"type": chosen.name}}},
        }
        draft = Draft.from_mapping({"experiment": experiment}, Origin(ARGUMENT))
        below = tuned_settings(chosen.name, env) if tuned else None
        return cls._resolve(draft, overrides, trusted, allow, tuned=below)

    @classmethod
    def from_mapping(
        cls,
        mapping: Mapping[str, object],
        *overrides: str,
        origin: str = PYTHON,
        trusted: bool = True,
        allow: Collection[str] = (),
        changes: Mapping[str, object] | None = None,
        tuned: Tuned | None = None,
        notes: Collection[str] = (),
    ) -> RunFile:
        """Makes the settings from a mapping, which may contain settings objects; `changes` are as in `replace`.

        Tuned settings lie below overrides and changes; `notes` are for the user.
        """
        draft = Draft.from_mapping(mapping, Origin(origin))
        draft.notes.extend(notes)
        return cls._resolve(draft, overrides, trusted, allow, changes or {}, tuned=tuned)

    @classmethod
    def _resolve(
        cls,
        draft: Draft,
        overrides: Collection[str],
        trusted: bool,
        allow: Collection[str],
        changes: Mapping[str, object] | None = None,
        *,
        doubt: str = "",
        tuned: Tuned | None = None,
        adds_defaults: bool = False,
    ) -> RunFile:
        draft.permitted = None if trusted else set(allow)
        with trust.importing_only(draft.permitted):
            normalize(draft, doubt=doubt)
            if adds_defaults:
                add_default_parts(draft)
            if tuned is not None:
                draft.notes.append(f"note: settings of {tuned.name}: {tuned.file.measured}")
                for key in types_first(tuned.file.settings):
                    set_key(draft, key, tuned.file.settings[key], tuned.name, Origin(tuned.name, tuned.name))
                    normalize(draft, doubt=doubt)
            for override in types_first(overrides):
                apply_override(draft, override)
                normalize(draft, doubt=doubt)
            for key in types_first(changes or {}):
                set_key(draft, key, (changes or {})[key], f'setting "{key}"', Origin(PYTHON))
                normalize(draft, doubt=doubt)
            return cls._validate(draft)

    @classmethod
    def _validate(cls, draft: Draft) -> RunFile:
        _refuse_secrets(draft)
        values = with_algorithm_defaults(draft.values)
        try:
            tree = RunTree.model_validate(values)
        except ValidationError as error:
            found = error.errors(include_url=False)
            known = partial(names_at, values=values), partial(types_with, values=values)
            raise settings_error(problems_of(found, *known), draft.place) from None
        if problems := broken_rules(tree):
            raise settings_error(problems, draft.place)
        return cls(tree.experiment, tree.run, draft)

    @property
    def permitted(self) -> Collection[str] | None:
        """Returns the names of code that may be imported for this run; None for the user's own settings."""
        return self._draft.permitted

    @property
    def notes(self) -> list[str]:
        """Returns notes for the user: replaced aliases, imported code, old settings."""
        notes = [*self._draft.notes, *notes_on_placement(self.experiment.env, self.run.placement)]
        if self.run.env_workers.restart_window_seconds is None:
            return notes
        return [
            *notes,
            "note: run.env_workers.restart_window_seconds counts failures by the clock, so a faster machine ends the "
            "run earlier; set it to null, and restart_window_steps counts by steps",
        ]

    @cached_property
    def origins(self) -> Mapping[str, str]:
        """Returns the origin of each single value, by its dotted path."""
        labels, texts = {}, {}
        for path, origin in self._draft.all_origins():
            name = ".".join(map(str, path))
            labels[name] = origin.label
            if isinstance(self._draft.get(path), str):
                # A text may stand for a whole mapping, such as lin_0.001 for a schedule.
                texts[name] = origin.label
        from_algorithm = {
            path
            for block, defaults in algorithm_defaults(self._draft.values).items()
            for path, _ in leaves(defaults, ".".join(map(str, block)))
        }
        unset = {path: ALGORITHM_DEFAULT if path in from_algorithm else DEFAULT for path, _ in leaves(self.to_dict())}
        return {path: labels.get(path) or texts.get(path.rpartition(".")[0], label) for path, label in unset.items()}

    def replace(self, key: str, value: object, *, origin: str = PYTHON) -> RunFile:
        """Returns the run file with one setting changed; `key` is a path or short name, as in an override.

        Lists of events and writers are set as they are.
        """
        draft = self._draft.copy()
        set_key(draft, key, value, f'replace("{key}")', Origin(origin), adds_defaults=False)
        normalize(draft)
        return self._validate(draft)

    def with_overrides(self, *overrides: str) -> RunFile:
        """Returns the run file with settings changed by `key=value`, all of them before it is validated."""
        draft = self._draft.copy()
        for override in types_first(overrides):
            apply_override(draft, override)
            normalize(draft)
        return self._validate(draft)

    def to_dict(self) -> JsonObject:
        """Returns the whole tree, defaults included, as JSON-like values."""
        return {
            "experiment": self.experiment.model_dump(mode="json"),
            "run": self.run.model_dump(mode="json"),
        }

    def to_yaml(self) -> str:
        """Writes the whole tree as YAML, with the origin of each value in a comment.

        Values from such a file keep the origins it names, so that a resumed run still lists the original ones.
        """
        origins, source = self.origins, self._draft.source
        if source and Path(source).is_file():
            origins = origins_behind(origins, source, Path(source).read_text(encoding="utf-8"))
        return annotated_yaml(self.to_dict(), origins)

    def save(self, path: str | Path) -> None:
        """Writes the whole tree to a file that `load` reads back as an equal run file."""
        Path(path).write_text(self.to_yaml(), encoding="utf-8")

    def fingerprint(self) -> str:
        """Returns the hash of all settings that can change results."""
        return fingerprint_of(self.experiment)


def _refuse_secrets(draft: Draft) -> None:
    """Refuses secrets, without repeating them."""
    for path in literal_secrets(draft.values):
        # The place of an override is its whole text.
        place = "an override" if draft.origin(path).label == OVERRIDE else draft.place(path)
        raise SettingsError(
            f"{place + ': ' if place else ''}{dotted(path)}: looks like a secret, and settings are kept in files. Put "
            f"it into an environment variable that your code reads, and name that here, such as env:MY_KEY",
            code="E0209",
        )
