"""Identifies an experiment by all settings that can change results, so that a resume cannot change one unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from quintain.settings.experiment import Experiment

if TYPE_CHECKING:
    from quintain.settings.yaml_text import Raw
    from quintain.typing import Json, JsonObject


def fingerprint_of(experiment: Experiment) -> str:
    """Returns the SHA-256 of the canonical JSON of the experiment."""
    text = json.dumps(_relevant(experiment), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class HasExperiment(Protocol):
    """A run file, as far as it can change results."""

    @property
    def experiment(self) -> Experiment: ...


def changed_keys(old: HasExperiment, new: HasExperiment) -> list[tuple[str, Json, Json]]:
    """Lists the differences of two experiments as (path, old, new); None is a missing setting."""
    before = dict(leaves(_relevant(old.experiment), "experiment"))
    after = dict(leaves(_relevant(new.experiment), "experiment"))
    return [
        (path, before.get(path), after.get(path))
        for path in {**before, **after}
        if path not in before or path not in after or before[path] != after[path]
    ]


def leaves(value: Raw, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yields every single value of a dumped tree by its dotted path; a list of scalars is one value."""
    items: Iterable[tuple[str | int, Raw]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        items = enumerate(value)
    if not items:
        yield path, value
    for step, item in items:
        yield from leaves(item, f"{path}.{step}" if path else str(step))


def _relevant(experiment: Experiment) -> JsonObject:
    dumped = experiment.model_dump(mode="json")
    if experiment.initialize_from is None:
        # As before there were forks in settings.
        del dumped["initialize_from"]
    for name, behavior in experiment.behaviors.items():
        dumped["behaviors"][name]["events"] = [
            event.model_dump(mode="json")
            for event in behavior.events
            if not getattr(type(event), "observes_only", False)
        ]
    return dumped
