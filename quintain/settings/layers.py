"""Merges user settings over the defaults of the chosen algorithm and environment."""

from __future__ import annotations

from collections.abc import Mapping

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.settings.yaml_text import KeyPath, Raw


def algorithm_defaults(values: Mapping[str, Raw]) -> dict[KeyPath, Mapping[str, Raw]]:
    """Returns the default blocks of an algorithm's registration, by path."""
    experiment = values.get("experiment")
    behaviors = experiment.get("behaviors") if isinstance(experiment, Mapping) else None
    blocks: dict[KeyPath, Mapping[str, Raw]] = {}
    for name, behavior in behaviors.items() if isinstance(behaviors, Mapping) else ():
        algorithm = behavior.get("algorithm") if isinstance(behavior, Mapping) else None
        chosen = algorithm.get("type") if isinstance(algorithm, Mapping) else None
        for block, defaults in _defaults_of(chosen).items() if isinstance(chosen, str) else ():
            blocks["experiment", "behaviors", name, block] = defaults
    return blocks


def env_defaults(values: Mapping[str, Raw]) -> dict[KeyPath, Mapping[str, Raw]]:
    """Returns the defaults of the environment type for each behaviour, by path."""
    experiment = values.get("experiment")
    if not isinstance(experiment, Mapping) or not isinstance(experiment.get("behaviors"), Mapping):
        return {}
    env = experiment.get("env")
    chosen = env.get("type") if isinstance(env, Mapping) else None
    if not isinstance(chosen, str):
        return {}
    try:
        defaults = registry.get("env", chosen).settings_class.behavior_defaults
    except SettingsError:
        return {}
    return {("experiment", "behaviors", name): defaults for name in experiment["behaviors"] if defaults}


def _defaults_of(algorithm: str) -> Mapping[str, Mapping[str, Raw]]:
    try:
        return registry.get("algorithm", algorithm).defaults
    except SettingsError:
        # Validation reports the unknown name, together with everything else and with its place.
        return {}


def with_algorithm_defaults(values: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """Completes user settings with the algorithm's defaults, and below them with the environment's."""
    # All blocks of one kind at once: laid under the values one by one, each would copy all behaviours.
    for found in (algorithm_defaults(values), env_defaults(values)):
        lower: dict[str, Raw] = {}
        # The last comes first, as if they had been laid one after another; the order of behaviours follows from it.
        for path, defaults in reversed(found.items()):
            node = lower
            for step in path[:-1]:
                node = node.setdefault(str(step), {})
            node[str(path[-1])] = defaults
        values = merged(lower, values)
    return values


def merged(lower: Mapping[str, Raw], upper: Mapping[str, Raw]) -> dict[str, Raw]:
    """Merges one mapping over another; a block of another `type` replaces the whole block below it."""
    result = dict(lower)
    for key, value in upper.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping) and _same_type(below, value):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result


def _same_type(lower: Mapping[str, Raw], upper: Mapping[str, Raw]) -> bool:
    return "type" not in upper or upper["type"] == lower.get("type", upper["type"])
