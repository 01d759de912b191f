"""Checks combinations of settings that cannot work. Each rule names both keys."""

from __future__ import annotations

from collections.abc import Iterator

from quintain.settings.agent_rules import agents_have_trajectories, behaviors_fit_env
from quintain.settings.base import Schedule
from quintain.settings.errors import Problem
from quintain.settings.experiment import Behavior, Experiment
from quintain.settings.outline import RunTree
from quintain.settings.placement_rules import (
    collectors_share_lanes,
    halves_are_whole,
    integer,
    mirrors_are_here,
    processes_have_place,
    ranks_have_devices,
    ranks_share_lanes,
    ranks_share_minibatches,
    workers_have_lanes,
)
from quintain.settings.sources import dotted
from quintain.settings.yaml_text import KeyPath


def broken_rules(tree: RunTree) -> list[Problem]:
    """Returns a problem for each combination that cannot work."""
    problems: list[Problem] = [*ranks_share_lanes(tree), *workers_have_lanes(tree), *processes_have_place(tree)]
    problems += [
        *collectors_share_lanes(tree),
        *halves_are_whole(tree),
        *ranks_have_devices(tree),
        *_env_events_can_happen(tree.experiment),
        *behaviors_fit_env(tree),
    ]
    for name, behavior in tree.experiment.behaviors.items():
        path: KeyPath = ("experiment", "behaviors", name)
        problems += _minibatch_fits_batch(path, behavior, tree.experiment)
        problems += mirrors_are_here(path, behavior, tree.run.placement)
        problems += ranks_share_minibatches(path, behavior, tree.run.placement)
        problems += _stopping_has_evaluation(path, behavior)
        problems += _events_can_happen(path, behavior, tree.experiment)
        problems += _groups_fit_lanes(path, behavior, tree.experiment)
        problems += _memory_fits_sequences(path, behavior)
        problems += _micro_batch_fits_minibatch(path, behavior)
        problems += _settings_have_effect(path, behavior)
        problems += _replay_has_its_algorithm(path, behavior)
        problems += _replay_can_fill(path, behavior, tree.experiment)
        problems += agents_have_trajectories(path, behavior, tree.experiment)
    return problems


def _minibatch_fits_batch(path: KeyPath, behavior: Behavior, experiment: Experiment) -> Iterator[Problem]:
    batch_size = integer(behavior.algorithm, "batch_size")
    num_fragments = integer(behavior.rollout, "num_fragments")
    num_columns = num_fragments or integer(experiment.env, "num_lanes")
    num_steps, per_lane = (integer(behavior.rollout, name) for name in ("num_steps", "fragments_per_lane"))
    if batch_size is None or num_columns is None or num_steps is None or keeps_replay(behavior):
        return
    num_columns *= per_lane or 1
    if batch_size > num_columns * num_steps:
        columns = "experiment.env.num_lanes" if num_fragments is None else dotted((*path, "rollout", "num_fragments"))
        columns += "" if per_lane is None else f" * {dotted((*path, 'rollout', 'fragments_per_lane'))}"
        yield Problem(
            (*path, "algorithm", "batch_size"),
            f"{batch_size} is more than one batch has: {columns} * "
            f"{dotted((*path, 'rollout', 'num_steps'))} = {num_columns} * {num_steps} = "
            f"{num_columns * num_steps}; "
            f"lower batch_size, or raise {columns.rpartition('.')[2]} or num_steps",
            "E0215",
        )


def _stopping_has_evaluation(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    types = [event.type for event in behavior.events]
    if "stop_at_return" in types and "evaluate" not in types:
        yield Problem(
            (*path, "events", types.index("stop_at_return")),
            "stop_at_return can never happen without an evaluate event; add {type: evaluate}",
            "E0214",
        )


def _events_can_happen(path: KeyPath, behavior: Behavior, experiment: Experiment) -> Iterator[Problem]:
    budget, most_updates = experiment.budget.env_steps, experiment.budget.updates
    num_lanes, num_steps = integer(experiment.env, "num_lanes"), integer(behavior.rollout, "num_steps")
    num_lanes = integer(behavior.rollout, "num_fragments") or num_lanes
    num_steps = (num_steps or 0) * (integer(behavior.rollout, "fragments_per_lane") or 1)
    for place, event in enumerate(behavior.events):
        steps, updates = integer(event, "every_env_steps"), integer(event, "every_updates")
        # An evaluation comes at the end in any case.
        if event.type == "evaluate":
            continue
        where = (*path, "events", place)
        if updates is not None and most_updates is not None and updates > most_updates:
            never = f"{updates} can never happen in a run of experiment.budget.updates {most_updates}; lower it"
            yield Problem((*where, "every_updates"), never, "E0214")
        if budget is None:
            continue
        if steps is not None and steps > budget:
            yield Problem((*where, "every_env_steps"), _never(f"{steps}", budget), "E0214")
        if updates is not None and num_lanes and num_steps:
            total = -(-budget // (num_lanes * num_steps))
            if updates > total:
                yield Problem((*where, "every_updates"), _never(f"{updates} of {total} updates", budget), "E0214")


def _env_events_can_happen(experiment: Experiment) -> Iterator[Problem]:
    num_lanes = integer(experiment.env, "num_lanes")
    if num_lanes is None or experiment.budget.env_steps is None:
        return
    steps_of_a_lane = -(-experiment.budget.env_steps // num_lanes)
    for place, event in enumerate(getattr(experiment.env, "env_events", ())):
        interval = event.interval_step if event.mode == "interval" else 0
        if interval > steps_of_a_lane:
            yield Problem(
                ("experiment", "env", "env_events", place, "interval_step"),
                f"{interval} can never happen: each of {num_lanes} lanes has {steps_of_a_lane} of the "
                f"experiment.budget.env_steps {experiment.budget.env_steps}; lower it, or raise the budget",
                "E0214",
            )


def _never(interval: str, budget: int) -> str:
    return (
        f"{interval} can never happen in a run of experiment.budget.env_steps {budget}; lower the interval, or raise "
        f"the budget"
    )


def _groups_fit_lanes(path: KeyPath, behavior: Behavior, experiment: Experiment) -> Iterator[Problem]:
    env = ("experiment", "env")
    group_size, num_lanes = integer(experiment.env, "group_size"), integer(experiment.env, "num_lanes")
    if group_size is None or num_lanes is None:
        return
    algorithm = f"{dotted((*path, 'algorithm', 'type'))} {behavior.algorithm.type}"
    needs_groups = getattr(type(behavior.algorithm), "needs_groups", False)
    is_native = getattr(experiment.env, "vectorization", "lanes") == "native"
    if is_native and (needs_groups or group_size > 1):
        why = f"which {algorithm} needs" if needs_groups else f"which experiment.env.group_size {group_size} asks for"
        yield Problem(
            (*env, "vectorization"), f"native cannot start lanes alike, {why}; set vectorization to lanes", "E0219"
        )
    elif needs_groups and group_size < 2:
        yield Problem(
            (*env, "group_size"),
            f"{group_size} leaves nothing to compare: {algorithm} compares lanes that start alike; set group_size to 2 "
            f"or more, so that it divides experiment.env.num_lanes {num_lanes}",
            "E0219",
        )
    elif num_lanes % group_size:
        yield Problem(
            (*env, "group_size"),
            f"{group_size} does not divide experiment.env.num_lanes {num_lanes}; every group must be whole",
            "E0219",
        )


def _memory_fits_sequences(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    memory = getattr(behavior.policy, "memory", None)
    if memory is None:
        return
    is_replayed, where = keeps_replay(behavior), (*path, "policy", "memory")
    num_steps, horizon = (integer(behavior.rollout, name) for name in ("num_steps", "time_horizon"))
    for name in ("batch_size", "micro_batch_size"):
        size = integer(behavior.algorithm, name)
        if not is_replayed and size is not None and num_steps is not None and size % num_steps:
            yield Problem(
                (*path, "algorithm", name),
                f"{size} is {size / num_steps:.3g} lanes of {dotted((*path, 'rollout', 'num_steps'))} {num_steps}; "
                f"with {dotted(where)} a minibatch is whole lanes: set {name} to "
                f"{max(1, round(size / num_steps)) * num_steps}, or to another multiple of num_steps",
                "E0221",
            )
    length, burn_in = horizon or num_steps, getattr(memory, "burn_in", 0)
    if burn_in and is_replayed:
        yield Problem(
            (*where, "burn_in"),
            f"{burn_in} would leave the starts of replayed sequences out of losses, and with them most of short "
            f"episodes; {behavior.algorithm.type} learns from whole sequences: leave it out",
            "E0224",
        )
    elif length is not None and burn_in >= length:
        yield Problem(
            (*where, "burn_in"),
            f"{burn_in} leaves nothing to learn from in sequences of "
            f"{dotted((*path, 'rollout', 'time_horizon' if horizon else 'num_steps'))} {length}; lower it",
            "E0221",
        )


def _micro_batch_fits_minibatch(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    whole, part = integer(behavior.algorithm, "batch_size"), integer(behavior.algorithm, "micro_batch_size")
    if whole is not None and part is not None and part > whole:
        yield Problem(
            (*path, "algorithm", "micro_batch_size"),
            f"{part} is more than {dotted((*path, 'algorithm', 'batch_size'))} {whole}, of which it is a part; "
            f"lower it, or leave it out",
            "E0215",
        )


def _settings_have_effect(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    schedule = getattr(behavior.algorithm, "learning_rate", None)
    moves = isinstance(schedule, Schedule) and not schedule.is_constant
    if getattr(behavior.algorithm, "adaptive_kl", None) is not None and moves:
        yield Problem(
            (*path, "algorithm", "learning_rate"),
            f"a schedule has no effect with {dotted((*path, 'algorithm', 'adaptive_kl'))}, which moves the learning "
            f"rate by itself; give one number",
            "E0222",
        )
    is_referred_to = getattr(behavior.algorithm, "kl_coef", 0.0) or getattr(behavior.algorithm, "value_warmup", 0)
    if getattr(behavior.algorithm, "update_reference", False) and not is_referred_to:
        yield Problem(
            (*path, "algorithm", "update_reference"),
            f"has no effect while {dotted((*path, 'algorithm', 'kl_coef'))} is 0, which keeps no reference; set it",
            "E0222",
        )
    cap = type(behavior.algorithm).model_fields.get("max_behavior_weight")
    found = getattr(behavior.algorithm, "max_behavior_weight", None)
    if getattr(behavior.algorithm, "stale_correction", None) == "none" and cap is not None and found != cap.default:
        yield Problem(
            (*path, "algorithm", "max_behavior_weight"),
            f"{found} has no effect without {dotted((*path, 'algorithm', 'stale_correction'))} decoupled; leave it "
            f"out, or set both",
            "E0222",
        )


def keeps_replay(behavior: Behavior) -> bool:
    """Whether the rollout store is a replay buffer, which keeps experience beyond one update."""
    return getattr(type(behavior.rollout), "keeps_replay", False)


def _replay_has_its_algorithm(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    needs_replay = getattr(type(behavior.algorithm), "needs_replay", False)
    if needs_replay == keeps_replay(behavior):
        return
    wanted = "learns from a replay buffer" if needs_replay else "learns from each batch once"
    advice = "replay" if needs_replay else "block"
    yield Problem(
        (*path, "rollout", "type"),
        f"{behavior.rollout.type} does not go with {dotted((*path, 'algorithm', 'type'))} {behavior.algorithm.type}, "
        f"which {wanted}; set it to {advice}, or leave it out",
        "E0224",
    )


def _replay_can_fill(path: KeyPath, behavior: Behavior, experiment: Experiment) -> Iterator[Problem]:
    buffer_size = integer(behavior.rollout, "buffer_size")
    num_lanes, num_steps = integer(experiment.env, "num_lanes") or 1, integer(behavior.rollout, "num_steps") or 1
    if buffer_size is None or not keeps_replay(behavior):
        return
    if buffer_size < num_lanes * num_steps:
        yield Problem(
            (*path, "rollout", "buffer_size"),
            f"{buffer_size} is less than is collected at once: experiment.env.num_lanes * "
            f"{dotted((*path, 'rollout', 'num_steps'))} = {num_lanes * num_steps}; raise it",
            "E0225",
        )
