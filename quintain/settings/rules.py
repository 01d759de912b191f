"""Checks what no single field can know: combinations that cannot work. Each rule names both keys."""

from __future__ import annotations

from collections.abc import Iterator

from quintain.settings.base import PartSettings
from quintain.settings.errors import Problem
from quintain.settings.experiment import Behavior, Experiment
from quintain.settings.outline import RunTree
from quintain.settings.sources import dotted
from quintain.settings.yaml_text import KeyPath


def broken_rules(tree: RunTree) -> list[Problem]:
    """Returns a problem for each combination that cannot work."""
    problems: list[Problem] = [*_ranks_share_lanes(tree), *_workers_have_lanes(tree), *_processes_have_place(tree)]
    problems += [*_halves_are_whole(tree), *_env_events_can_happen(tree.experiment)]
    for name, behavior in tree.experiment.behaviors.items():
        path: KeyPath = ("experiment", "behaviors", name)
        problems += _minibatch_fits_batch(path, behavior, tree.experiment)
        problems += _staleness_has_placement(path, behavior, tree.run.placement)
        problems += _mirrors_are_here(path, behavior, tree.run.placement)
        problems += _ranks_share_minibatches(path, behavior, tree.run.placement)
        problems += _stopping_has_evaluation(path, behavior)
        problems += _events_can_happen(path, behavior, tree.experiment)
        problems += _groups_fit_lanes(path, behavior, tree.experiment)
        problems += _memory_has_whole_lanes(path, behavior)
        problems += _micro_batch_fits_minibatch(path, behavior)
        problems += _one_hand_on_the_learning_rate(path, behavior)
        problems += _replay_has_its_algorithm(path, behavior)
        problems += _replay_can_fill(path, behavior, tree.experiment)
    return problems


def _minibatch_fits_batch(path: KeyPath, behavior: Behavior, experiment: Experiment) -> Iterator[Problem]:
    batch_size = _integer(behavior.algorithm, "batch_size")
    num_lanes = _integer(experiment.env, "num_lanes")
    num_steps = _integer(behavior.rollout, "num_steps")
    if batch_size is None or num_lanes is None or num_steps is None or keeps_replay(behavior):
        return
    if batch_size > num_lanes * num_steps:
        yield Problem(
            (*path, "algorithm", "batch_size"),
            f"{batch_size} is more than one batch has: experiment.env.num_lanes * "
            f"{dotted((*path, 'rollout', 'num_steps'))} = {num_lanes} * {num_steps} = "
            f"{num_lanes * num_steps}; "
            "lower batch_size, or raise num_lanes or num_steps",
            "E0215",
        )


def _staleness_has_placement(path: KeyPath, behavior: Behavior, placement: PartSettings) -> Iterator[Problem]:
    max_staleness = _integer(behavior.rollout, "max_staleness")
    if max_staleness and placement.type == "local":
        yield Problem(
            (*path, "rollout", "max_staleness"),
            f"{max_staleness} has no effect with run.placement.type local, which acts and learns in turns; "
            "set max_staleness to 0, or run.placement to threads or processes",
            "E0213",
        )


def _processes_have_place(tree: RunTree) -> Iterator[Problem]:
    run = tree.run
    if run.placement.type != "processes":
        return
    if run.env_workers.num_workers is not None:
        yield Problem(
            ("run", "env_workers", "num_workers"),
            f"{run.env_workers.num_workers} workers cannot be had with run.placement.type processes, whose collector "
            "steps its lanes itself; leave it out, or set run.placement to threads, which may have workers",
            "E0253",
        )
    if run.device != "cpu":
        yield Problem(
            ("run", "device"),
            f"{run.device} does not go with run.placement.type processes, which shares memory of the CPU; set it to "
            "cpu, or run.placement to threads",
            "E0253",
        )


def _mirrors_are_here(path: KeyPath, behavior: Behavior, placement: PartSettings) -> Iterator[Problem]:
    if placement.type == "processes" and getattr(behavior.algorithm, "use_symmetry", False):
        yield Problem(
            (*path, "algorithm", "use_symmetry"),
            "mirror(obs, action) is a function of the environment, which run.placement.type processes has in another "
            "process than the learner; set run.placement to threads or local",
            "E0253",
        )


def _workers_have_lanes(tree: RunTree) -> Iterator[Problem]:
    num_workers = tree.run.env_workers.num_workers
    num_lanes = _integer(tree.experiment.env, "num_lanes")
    if num_workers is not None and num_lanes is not None and num_workers > num_lanes:
        yield Problem(
            ("run", "env_workers", "num_workers"),
            f"{num_workers} is more than experiment.env.num_lanes, {num_lanes}: a lane runs in one process; lower "
            "num_workers or raise num_lanes",
            "E0232",
        )


def _halves_are_whole(tree: RunTree) -> Iterator[Problem]:
    workers = tree.run.env_workers
    if not workers.acts_in_halves:
        return
    where: KeyPath = ("run", "env_workers", "acts_in_halves")
    if (workers.num_workers or 0) < 2:
        yield Problem(where, "halves of the lanes need workers of their own; set num_workers to 2 or more", "E0232")
    unit = 2 * (_integer(tree.run.placement, "num_ranks") or 1) * (_integer(tree.experiment.env, "group_size") or 1)
    num_lanes = _integer(tree.experiment.env, "num_lanes") or unit
    if num_lanes % unit:
        text = f"experiment.env.num_lanes = {num_lanes} has no equal halves; make it a multiple of {unit}"
        yield Problem(where, text, "E0232")


def _ranks_share_lanes(tree: RunTree) -> Iterator[Problem]:
    num_ranks = _integer(tree.run.placement, "num_ranks") or 1
    num_lanes = _integer(tree.experiment.env, "num_lanes") or num_ranks
    group_size = _integer(tree.experiment.env, "group_size") or 1
    if num_lanes % num_ranks or (num_ranks > 1 and num_lanes // num_ranks % group_size):
        groups = f" in groups of {group_size}" if group_size > 1 else ""
        yield Problem(
            ("run", "placement", "num_ranks"),
            f"{num_ranks} ranks cannot share experiment.env.num_lanes = {num_lanes} equally{groups}; make num_lanes a "
            f"multiple of {num_ranks * group_size}",
            "E0241",
        )


def _ranks_share_minibatches(path: KeyPath, behavior: Behavior, placement: PartSettings) -> Iterator[Problem]:
    num_ranks = _integer(placement, "num_ranks") or 1
    batch_size = _integer(behavior.algorithm, "batch_size")
    has_memory = getattr(behavior.policy, "memory", None) is not None
    unit = num_ranks * (_integer(behavior.rollout, "num_steps") or 1 if has_memory else 1)
    if num_ranks > 1 and batch_size is not None and batch_size % unit:
        lanes = ", each with whole lanes" if has_memory else ""
        yield Problem(
            (*path, "algorithm", "batch_size"),
            f"{batch_size} cannot be shared equally by run.placement.num_ranks = {num_ranks}{lanes}; make it a "
            f"multiple of {unit}",
            "E0241",
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
    budget = experiment.budget.env_steps
    num_lanes, num_steps = _integer(experiment.env, "num_lanes"), _integer(behavior.rollout, "num_steps")
    for place, event in enumerate(behavior.events):
        steps, updates = _integer(event, "every_env_steps"), _integer(event, "every_updates")
        # An evaluation comes at the end in any case.
        if event.type == "evaluate":
            continue
        where = (*path, "events", place)
        if steps is not None and steps > budget:
            yield Problem((*where, "every_env_steps"), _never(f"{steps}", budget), "E0214")
        if updates is not None and num_lanes and num_steps:
            total = -(-budget // (num_lanes * num_steps))
            if updates > total:
                yield Problem((*where, "every_updates"), _never(f"{updates} of {total} updates", budget), "E0214")


def _env_events_can_happen(experiment: Experiment) -> Iterator[Problem]:
    num_lanes = _integer(experiment.env, "num_lanes")
    if num_lanes is None:
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
    group_size, num_lanes = _integer(experiment.env, "group_size"), _integer(experiment.env, "num_lanes")
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


def _memory_has_whole_lanes(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    num_steps = _integer(behavior.rollout, "num_steps")
    if num_steps is None or getattr(behavior.policy, "memory", None) is None:
        return
    for name in ("batch_size", "micro_batch_size"):
        size = _integer(behavior.algorithm, name)
        if size is not None and size % num_steps:
            yield Problem(
                (*path, "algorithm", name),
                f"{size} is {size / num_steps:.3g} lanes of {dotted((*path, 'rollout', 'num_steps'))} {num_steps}; "
                f"with {dotted((*path, 'policy', 'memory'))} a minibatch is whole lanes: set {name} to "
                f"{max(1, round(size / num_steps)) * num_steps}, or to another multiple of num_steps",
                "E0221",
            )


def _micro_batch_fits_minibatch(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    whole, part = _integer(behavior.algorithm, "batch_size"), _integer(behavior.algorithm, "micro_batch_size")
    if whole is not None and part is not None and part > whole:
        yield Problem(
            (*path, "algorithm", "micro_batch_size"),
            f"{part} is more than {dotted((*path, 'algorithm', 'batch_size'))} {whole}, of which it is a part; "
            f"lower it, or leave it out",
            "E0215",
        )


def _one_hand_on_the_learning_rate(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    schedule = getattr(behavior.algorithm, "learning_rate", None)
    if getattr(behavior.algorithm, "adaptive_kl", None) is not None and getattr(schedule, "end", None) is not None:
        yield Problem(
            (*path, "algorithm", "learning_rate"),
            f"a schedule has no effect with {dotted((*path, 'algorithm', 'adaptive_kl'))}, which moves the learning "
            f"rate by itself; give one number",
            "E0222",
        )


def keeps_replay(behavior: Behavior) -> bool:
    """Says whether the rollout store keeps experience beyond the update that it was collected for."""
    return getattr(type(behavior.rollout), "keeps_replay", False)


def _replay_has_its_algorithm(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    needs_replay = getattr(type(behavior.algorithm), "needs_replay", False)
    if needs_replay == keeps_replay(behavior):
        return
    wanted = "learns from what is remembered" if needs_replay else "learns from each batch once"
    advice = "replay" if needs_replay else "block"
    yield Problem(
        (*path, "rollout", "type"),
        f"{behavior.rollout.type} does not go with {dotted((*path, 'algorithm', 'type'))} {behavior.algorithm.type}, "
        f"which {wanted}; set it to {advice}, or leave it out",
        "E0224",
    )


def _replay_can_fill(path: KeyPath, behavior: Behavior, experiment: Experiment) -> Iterator[Problem]:
    buffer_size = _integer(behavior.rollout, "buffer_size")
    num_lanes, num_steps = _integer(experiment.env, "num_lanes") or 1, _integer(behavior.rollout, "num_steps") or 1
    if buffer_size is None or not keeps_replay(behavior):
        return
    if buffer_size < num_lanes * num_steps:
        yield Problem(
            (*path, "rollout", "buffer_size"),
            f"{buffer_size} is less than is collected at once: experiment.env.num_lanes * "
            f"{dotted((*path, 'rollout', 'num_steps'))} = {num_lanes * num_steps}; raise it",
            "E0225",
        )


def _integer(settings: PartSettings, name: str) -> int | None:
    """Reads a setting that only some parts of a kind have."""
    value = getattr(settings, name) if name in type(settings).model_fields else None
    return value if isinstance(value, int) else None
