"""Rules on placements, ranks and workers, and on settings they share. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from quintain.settings.base import PartSettings
from quintain.settings.errors import Problem
from quintain.settings.experiment import Behavior
from quintain.settings.outline import RunTree
from quintain.settings.yaml_text import KeyPath

ELSEWHERE = ("processes", "ray")
"""Placements whose environments are in other processes than the learner."""


def processes_have_place(tree: RunTree) -> Iterator[Problem]:
    run = tree.run
    if run.placement.type != "local" and tree.experiment.loop is not None:
        yield Problem(
            ("run", "placement"),
            f"{run.placement.type} places lanes, and experiment.loop has none and acts by itself; leave run.placement "
            "out",
            "E0253",
        )
        return
    if run.placement.type not in ELSEWHERE:
        return
    most, least = integer(run.placement, "num_ranks") or 1, integer(run.placement, "min_ranks") or 1
    if least > most:
        yield Problem(
            ("run", "placement", "min_ranks"),
            f"{least} is more than run.placement.num_ranks, {most}; lower it, or leave it out",
            "E0241",
        )


def ranks_have_devices(tree: RunTree) -> Iterator[Problem]:
    """Refuses GPUs that nothing would learn on, and several ranks on Ray for which no GPU is reserved, or one."""
    device, placement = tree.run.device, tree.run.placement
    if placement.type != "ray":
        return
    num_gpus, num_ranks = dict(placement).get("num_gpus_per_rank") or 0, integer(placement, "num_ranks") or 1
    if num_gpus and device == "cpu":
        yield Problem(
            ("run", "placement", "num_gpus_per_rank"),
            f"{num_gpus:g} GPU of each rank would be idle, because run.device is cpu; set run.device to cuda, or leave "
            "it out",
            "E0253",
        )
    elif not num_gpus and device != "cpu" and num_ranks > 1:
        yield Problem(
            ("run", "device"),
            f"{device} needs a GPU for each of {num_ranks} ranks, and run.placement.num_gpus_per_rank reserves none; "
            "set it to 1, or to a fraction",
            "E0253",
        )
    elif ":" in device and num_ranks > 1:
        yield Problem(
            ("run", "device"),
            f"{device} names one GPU for {num_ranks} ranks, each of which gets its own by "
            "run.placement.num_gpus_per_rank; set it to cuda",
            "E0253",
        )


def mirrors_are_here(path: KeyPath, behavior: Behavior, placement: PartSettings) -> Iterator[Problem]:
    if placement.type in ELSEWHERE and getattr(behavior.algorithm, "use_symmetry", False):
        yield Problem(
            (*path, "algorithm", "use_symmetry"),
            f"mirror(obs, action) is a function of the environment, which run.placement.type {placement.type} has in "
            "another process than the learner; set run.placement to threads or local",
            "E0253",
        )


def workers_have_lanes(tree: RunTree) -> Iterator[Problem]:
    num_workers = tree.run.env_workers.num_workers
    num_lanes = integer(tree.experiment.env, "num_lanes")
    if num_workers is not None and num_lanes is not None and num_workers > num_lanes:
        yield Problem(
            ("run", "env_workers", "num_workers"),
            f"{num_workers} is more than experiment.env.num_lanes, {num_lanes}: a lane runs in one process; lower "
            "num_workers or raise num_lanes",
            "E0232",
        )


def halves_are_whole(tree: RunTree) -> Iterator[Problem]:
    workers = tree.run.env_workers
    if not workers.acts_in_halves:
        return
    where: KeyPath = ("run", "env_workers", "acts_in_halves")
    if (workers.num_workers or 0) < 2:
        yield Problem(where, "halves of the lanes need workers of their own; set num_workers to 2 or more", "E0232")
    unit = 2 * (integer(tree.run.placement, "num_ranks") or 1) * (integer(tree.experiment.env, "group_size") or 1)
    num_lanes = integer(tree.experiment.env, "num_lanes") or unit
    if num_lanes % unit:
        text = f"experiment.env.num_lanes = {num_lanes} has no equal halves; make it a multiple of {unit}"
        yield Problem(where, text, "E0232")


def most_collectors(num_actors: int, num_lanes: int, unit: int) -> int:
    """Returns how many collectors, with one actor each at most, can share lanes equally in whole units.

    >>> most_collectors(num_actors=4, num_lanes=12, unit=2), most_collectors(num_actors=2, num_lanes=1, unit=1)
    (3, 1)
    """
    return next((number for number in range(num_actors, 0, -1) if num_lanes % (number * unit) == 0), 1)


def num_actors_of(env: PartSettings, placement: PartSettings) -> int:
    """Returns how many rollout actors a rank has: one for each collector, or fewer that are asked for."""
    num_collectors = integer(env, "num_collectors") or 1
    return min(integer(placement, "num_actors") or num_collectors, num_collectors)


def notes_on_placement(env: PartSettings, placement: PartSettings) -> Iterator[str]:
    """Yields a warning where actors are fewer than was asked for, and a note where there can be no readers."""
    num_actors, num_collectors = integer(placement, "num_actors") or 1, integer(env, "num_collectors") or 1
    if num_actors > num_collectors:
        yield (
            f"warning[W0542]: run.placement.num_actors: {num_collectors} in place of {num_actors}, because more cannot "
            f"share experiment.env.num_lanes = {integer(env, 'num_lanes')} equally"
        )
    address = dict(placement).get("address") or ""
    if integer(placement, "num_readers") and address.startswith("ray://"):
        yield (
            f"note: run.placement.num_readers: no readers through {address}, whose proxy hands results over when the "
            f"learner asks for them"
        )


def collectors_share_lanes(tree: RunTree) -> Iterator[Problem]:
    env, workers, placement = tree.experiment.env, tree.run.env_workers, tree.run.placement
    if tree.experiment.loop is not None:
        return
    num_collectors = integer(env, "num_collectors") or 1
    share = (integer(placement, "num_ranks") or 1) * (integer(env, "group_size") or 1)
    for name in ("num_processes", "num_actors"):
        num_hosts = integer(placement, name) or 1
        # Fewer rollout actors than were asked for may be all that can share the lanes, which the run says.
        most = most_collectors(num_hosts, integer(env, "num_lanes") or share, share) if name == "num_actors" else 0
        if num_hosts > num_collectors != most:
            yield Problem(
                ("run", "placement", name),
                f"{num_hosts} is more than experiment.env.num_collectors, {num_collectors}: a collector acts in one "
                f"process; lower {name} or raise num_collectors",
                "E0255",
            )
    if num_collectors == 1:
        return
    where: KeyPath = ("experiment", "env", "num_collectors")
    unit = num_collectors * share
    num_lanes = integer(env, "num_lanes") or unit
    if num_lanes % unit:
        yield Problem(
            where,
            f"{num_collectors} collectors cannot share experiment.env.num_lanes = {num_lanes} equally; make num_lanes "
            f"a multiple of {unit}",
            "E0255",
        )
    if workers.num_workers is not None and workers.num_workers < num_collectors:
        yield Problem(
            ("run", "env_workers", "num_workers"),
            f"{workers.num_workers} is less than experiment.env.num_collectors, {num_collectors}: a worker steps lanes "
            "of one collector; raise num_workers, or leave it out",
            "E0232",
        )
    if workers.acts_in_halves:
        yield Problem(
            ("run", "env_workers", "acts_in_halves"),
            f"it splits the lanes in two, which {num_collectors} collectors have split already; leave it out",
            "E0232",
        )


def ranks_share_lanes(tree: RunTree) -> Iterator[Problem]:
    num_ranks = integer(tree.run.placement, "num_ranks") or 1
    if num_ranks > 1 and tree.experiment.loop is not None and tree.experiment.loop.type == "hosted":
        text = "a hosted function runs in one process; set it to 1. The function may use torch.distributed itself"
        yield Problem(("run", "placement", "num_ranks"), text, "E0241")
    num_lanes = integer(tree.experiment.env, "num_lanes") or num_ranks
    group_size = integer(tree.experiment.env, "group_size") or 1
    if num_lanes % num_ranks or (num_ranks > 1 and num_lanes // num_ranks % group_size):
        groups = f" in groups of {group_size}" if group_size > 1 else ""
        yield Problem(
            ("run", "placement", "num_ranks"),
            f"{num_ranks} ranks cannot share experiment.env.num_lanes = {num_lanes} equally{groups}; make num_lanes a "
            f"multiple of {num_ranks * group_size}",
            "E0241",
        )


def ranks_share_minibatches(path: KeyPath, behavior: Behavior, placement: PartSettings) -> Iterator[Problem]:
    num_ranks, num_fragments = integer(placement, "num_ranks") or 1, integer(behavior.rollout, "num_fragments")
    unit = num_ranks * (integer(behavior.rollout, "max_reuse") or 1)
    if num_fragments is not None and num_fragments % unit:
        yield Problem(
            (*path, "rollout", "num_fragments"),
            f"{num_fragments} new and kept fragments cannot be shared equally by rollout.max_reuse and "
            f"run.placement.num_ranks; make it a multiple of {unit}",
            "E0241",
        )
    batch_size = integer(behavior.algorithm, "batch_size")
    # A minibatch of replayed sequences is drawn until it has enough steps, so it needs no whole lanes.
    is_replayed = getattr(type(behavior.rollout), "keeps_replay", False)
    has_memory = getattr(behavior.policy, "memory", None) is not None and not is_replayed
    unit = num_ranks * (integer(behavior.rollout, "num_steps") or 1 if has_memory else 1)
    if num_ranks > 1 and batch_size is not None and batch_size % unit:
        lanes = ", each with whole lanes" if has_memory else ""
        yield Problem(
            (*path, "algorithm", "batch_size"),
            f"{batch_size} cannot be shared equally by run.placement.num_ranks = {num_ranks}{lanes}; make it a "
            f"multiple of {unit}",
            "E0241",
        )


def integer(settings: PartSettings, name: str) -> int | None:
    """Reads a setting that only some parts of a kind have."""
    value = dict(settings).get(name)
    return value if isinstance(value, int) else None
