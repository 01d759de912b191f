"""Merges user settings over the defaults of the chosen algorithm and environment."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import PydanticCustomError

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.settings.base import PartSettings, parse_count
from quintain.settings.placement_rules import most_collectors
from quintain.settings.yaml_text import KeyPath, Raw

RECURRENT_BATCH = 256
"""Minibatch size in steps of a recurrent policy, if a lane has not more."""
MAX_MINIBATCHES = 32
"""Minibatches of an epoch, where batch_size is not set."""


def algorithm_defaults(values: Mapping[str, Raw]) -> dict[KeyPath, Mapping[str, Raw]]:
    """Returns the default blocks of an algorithm, by path: those of its registration, and for lanes."""
    experiment = values.get("experiment")
    if not isinstance(experiment, Mapping) or not isinstance(experiment.get("behaviors"), Mapping):
        return {}
    blocks: dict[KeyPath, Mapping[str, Raw]] = {}
    for name, behavior in experiment["behaviors"].items():
        algorithm = behavior.get("algorithm") if isinstance(behavior, Mapping) else None
        chosen = algorithm.get("type") if isinstance(algorithm, Mapping) else None
        registration = _registration("algorithm", chosen)
        if registration is not None:
            # Lanes have one behaviour.
            is_alone = len(experiment["behaviors"]) == 1
            sizes = _lane_defaults(registration.settings_class, behavior, experiment.get("env")) if is_alone else {}
            for block, defaults in merged(sizes, registration.defaults).items():
                blocks["experiment", "behaviors", name, block] = defaults
    return blocks


def _lane_defaults(
    algorithm: type[PartSettings], behavior: Mapping[str, Raw], env: Raw
) -> Mapping[str, Mapping[str, Raw]]:
    """Returns defaults of an algorithm that wants `steps_per_update` from all lanes: num_steps, batch_size, noise_hold.

    Fewer lanes take more steps each; batches of many lanes have larger minibatches, and not more than 32. A batch that
    is smaller than a minibatch is one. A recurrent policy learns from whole lanes, so its minibatches are some of them.
    """
    wanted, least = getattr(algorithm, "steps_per_update", None), getattr(algorithm, "min_lane_steps", 1)
    rollout, policy = (behavior.get(name) or {} for name in ("rollout", "policy"))
    chosen = _registration("env", env.get("type")) if isinstance(env, Mapping) else None
    lanes = None if chosen is None else chosen.settings_class.model_fields.get("num_lanes")
    is_of_agents = chosen is not None and "rollout" in chosen.settings_class.behavior_defaults
    has_blocks = isinstance(rollout, Mapping) and rollout.get("type", "block") == "block" and not is_of_agents
    if wanted is None or lanes is None or not has_blocks:
        return {}
    num_lanes = _count(env.get("num_lanes", lanes.default))
    if num_lanes is None:
        return {}
    num_steps = max(least, wanted // num_lanes)
    sizes: dict[str, Mapping[str, Raw]] = {"rollout": {"num_steps": num_steps}}
    if isinstance(policy, Mapping) and policy.get("type", "actor_critic") == "actor_critic":
        sizes["policy"] = {"type": "actor_critic", "noise_hold": "auto"}
    given, smallest = _count(rollout.get("num_steps", num_steps)), algorithm.model_fields["batch_size"].default
    if given is None:
        return sizes
    if isinstance(policy, Mapping) and policy.get("memory") is not None:
        sizes["algorithm"] = {"batch_size": given * min(num_lanes, max(1, RECURRENT_BATCH // given))}
    elif (rows := num_lanes * given) > wanted or rows < smallest:
        sizes["algorithm"] = {"batch_size": min(rows, max(1, rows // MAX_MINIBATCHES // smallest) * smallest)}
    return sizes


def _count(value: Raw) -> int | None:
    """Returns a positive count; None for any other value, which validation reports with its place."""
    try:
        count = parse_count(value)
    except PydanticCustomError:
        return None
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else None


def env_defaults(values: Mapping[str, Raw]) -> dict[KeyPath, Mapping[str, Raw]]:
    """Returns the defaults of the environment type for each behaviour, by path."""
    experiment = values.get("experiment")
    if not isinstance(experiment, Mapping) or not isinstance(experiment.get("behaviors"), Mapping):
        return {}
    env = experiment.get("env")
    registration = _registration("env", env.get("type") if isinstance(env, Mapping) else None)
    if registration is None:
        return {}
    defaults = registration.settings_class.behavior_defaults
    return {("experiment", "behaviors", name): defaults for name in experiment["behaviors"] if defaults}


def placement_defaults(values: Mapping[str, Raw]) -> dict[KeyPath, Mapping[str, Raw]]:
    """Returns a collector for each rollout actor that is asked for, or as many as can share the lanes, by path."""
    experiment, run = values.get("experiment"), values.get("run")
    env = experiment.get("env") if isinstance(experiment, Mapping) else None
    placement = run.get("placement") if isinstance(run, Mapping) else None
    if not isinstance(env, Mapping) or not isinstance(placement, Mapping) or "num_actors" not in placement:
        return {}
    registration = _registration("env", env.get("type"))
    lanes = None if registration is None else registration.settings_class.model_fields.get("num_lanes")
    num_lanes = None if lanes is None else _count(env.get("num_lanes", lanes.default))
    num_actors, num_ranks = _count(placement["num_actors"]), _count(placement.get("num_ranks", 1))
    group_size = _count(env.get("group_size", 1))
    if num_lanes is None or num_actors is None or num_ranks is None or group_size is None:
        return {}
    return {("experiment", "env"): {"num_collectors": most_collectors(num_actors, num_lanes, num_ranks * group_size)}}


def _registration(kind: str, name: Raw) -> registry.Registration | None:
    try:
        return registry.get(kind, name) if isinstance(name, str) else None
    except SettingsError:
        # Validation reports the unknown name, together with everything else and with its place.
        return None


def with_algorithm_defaults(values: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """Completes user settings with the algorithm's defaults, and below them with the environment's."""
    # All blocks of one kind at once: laid under the values one by one, each would copy all behaviours.
    for found in (algorithm_defaults(values), env_defaults(values), placement_defaults(values)):
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
        result[key] = value
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            kind, kind_below = value.get("type", below.get("type")), below.get("type", value.get("type"))
            result[key] = merged(below, value) if kind == kind_below else value
    return result
