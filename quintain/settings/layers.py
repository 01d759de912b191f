"""Lays what a user set over the defaults that the chosen algorithm brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintain import registry
from quintain.errors import SettingsError
from quintain.settings.yaml_text import KeyPath


def algorithm_defaults(values: Mapping[str, Any]) -> dict[KeyPath, Mapping[str, object]]:
    """Returns the blocks an algorithm's registration brings, by the path of the block."""
    experiment = values.get("experiment")
    behaviors = experiment.get("behaviors") if isinstance(experiment, Mapping) else None
    blocks: dict[KeyPath, Mapping[str, object]] = {}
    for name, behavior in behaviors.items() if isinstance(behaviors, Mapping) else ():
        algorithm = behavior.get("algorithm") if isinstance(behavior, Mapping) else None
        chosen = algorithm.get("type") if isinstance(algorithm, Mapping) else None
        for block, defaults in _defaults_of(chosen).items() if isinstance(chosen, str) else ():
            blocks["experiment", "behaviors", name, block] = defaults
    return blocks


def _defaults_of(algorithm: str) -> Mapping[str, Mapping[str, object]]:
    try:
        return registry.get("algorithm", algorithm).defaults
    except SettingsError:
        # Validation reports the unknown name, together with everything else and with its place.
        return {}


def with_algorithm_defaults(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Completes what a user set by what the algorithm brings."""
    for path, defaults in algorithm_defaults(values).items():
        lower: Mapping[str, Any] = defaults
        for step in reversed(path):
            lower = {str(step): lower}
        values = merged(lower, values)
    return values


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Lays one mapping over another; a block of another `type` replaces the whole block below it."""
    result = dict(lower)
    for key, value in upper.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping) and _same_type(below, value):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result


def _same_type(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> bool:
    return "type" not in upper or upper["type"] == lower.get("type", upper["type"])
