"""Lays what a user set over the defaults that the chosen algorithm and environment bring."""

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


def env_defaults(values: Mapping[str, Any]) -> dict[KeyPath, Mapping[str, object]]:
    """Returns what the kind of environment brings for each behaviour, by the path of the behaviour."""
    experiment = values.get("experiment")
    if not isinstance(experiment, Mapping) or not isinstance(experiment.get("behaviors"), Mapping):
        return {}
    env = experiment.get("env")
    chosen = env.get("type") if isinstance(env, Mapping) else None
    try:
        settings_class = registry.get("env", chosen).settings_class if isinstance(chosen, str) else None
    except SettingsError:
        return {}
    defaults: Mapping[str, object] = getattr(settings_class, "behavior_defaults", {})
    return {("experiment", "behaviors", name): defaults for name in experiment["behaviors"] if defaults}


def _defaults_of(algorithm: str) -> Mapping[str, Mapping[str, object]]:
    try:
        return registry.get("algorithm", algorithm).defaults
    except SettingsError:
        # Validation reports the unknown name, together with everything else and with its place.
        return {}


def with_algorithm_defaults(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Completes what a user set by what the algorithm brings, and below that by what the environment does."""
    for path, defaults in [*algorithm_defaults(values).items(), *env_defaults(values).items()]:
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
