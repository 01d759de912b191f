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
    problems: list[Problem] = list(_ranks_share_lanes(tree))
    for name, behavior in tree.experiment.behaviors.items():
        path: KeyPath = ("experiment", "behaviors", name)
        problems += _minibatch_fits_batch(path, behavior, tree.experiment)
        problems += _staleness_has_placement(path, behavior, tree.run.placement)
        problems += _ranks_share_minibatches(path, behavior, tree.run.placement)
        problems += _stopping_has_evaluation(path, behavior)
    return problems


def _minibatch_fits_batch(path: KeyPath, behavior: Behavior, experiment: Experiment) -> Iterator[Problem]:
    batch_size = _integer(behavior.algorithm, "batch_size")
    num_lanes = _integer(experiment.env, "num_lanes")
    num_steps = _integer(behavior.rollout, "num_steps")
    if batch_size is None or num_lanes is None or num_steps is None:
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
            "set max_staleness to 0 or choose another placement",
            "E0216",
        )


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
            "E0221",
        )


def _ranks_share_minibatches(path: KeyPath, behavior: Behavior, placement: PartSettings) -> Iterator[Problem]:
    num_ranks = _integer(placement, "num_ranks") or 1
    batch_size = _integer(behavior.algorithm, "batch_size") or num_ranks
    if batch_size % num_ranks:
        yield Problem(
            (*path, "algorithm", "batch_size"),
            f"{batch_size} cannot be shared equally by run.placement.num_ranks = {num_ranks}; make it a multiple",
            "E0221",
        )


def _stopping_has_evaluation(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    types = [event.type for event in behavior.events]
    if "stop_at_return" in types and "evaluate" not in types:
        yield Problem(
            (*path, "events", types.index("stop_at_return")),
            "stop_at_return can never happen without an evaluate event; add {type: evaluate}",
            "E0217",
        )


def _integer(settings: PartSettings, name: str) -> int | None:
    """Reads a setting that only some parts of a kind have."""
    value = getattr(settings, name) if name in type(settings).model_fields else None
    return value if isinstance(value, int) else None
