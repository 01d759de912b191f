"""Checks combinations of settings with environments whose agents come and go."""

from __future__ import annotations

from collections.abc import Iterator

from quintain.settings.errors import Problem
from quintain.settings.experiment import Behavior, Experiment
from quintain.settings.outline import RunTree
from quintain.settings.placement_rules import ELSEWHERE, integer
from quintain.settings.sources import dotted
from quintain.settings.yaml_text import KeyPath, shortened


def has_agents(experiment: Experiment) -> bool:
    """Whether agents come and go in the environment, of one or several behaviours."""
    return getattr(type(experiment.env), "has_agents", False)


def behaviors_fit_env(tree: RunTree) -> Iterator[Problem]:
    """Refuses several behaviours without an environment of agents, and agents with workers."""
    found = shortened(", ".join(tree.experiment.behaviors))
    if not has_agents(tree.experiment):
        if len(tree.experiment.behaviors) > 1:
            yield Problem(
                ("experiment", "behaviors"),
                f"found {found}, expected exactly one: only an environment of agents (experiment.env.type agents) has "
                f"several",
                "E0205",
            )
        return
    if tree.run.device != "cpu" and tree.run.placement.type in ELSEWHERE:
        yield Problem(
            ("run", "device"),
            f"{tree.run.device} is for lanes: what agents did is learned from on the CPU; set it to cpu",
            "E0218",
        )
    if tree.run.env_workers.num_workers is not None:
        yield Problem(
            ("run", "env_workers", "num_workers"),
            "agents of all copies act in one pass, so their copies are stepped together; leave it out, or give each "
            "copy of the environment a process of its own inside its step()",
            "E0226",
        )


def agents_have_trajectories(path: KeyPath, behavior: Behavior, experiment: Experiment) -> Iterator[Problem]:
    """Requires trajectories for agents, and refuses them for lanes."""
    if has_agents(experiment) and getattr(type(behavior.algorithm), "starts_fresh", False):
        yield Problem(
            (*path, "algorithm", "type"),
            f"{behavior.algorithm.type} begins every rollout with new episodes in all lanes, and agents come and go at "
            f"times of their own; choose another algorithm, such as ppo",
            "E0226",
        )
        return
    keeps = getattr(type(behavior.rollout), "keeps_trajectories", False)
    if keeps != has_agents(experiment):
        needs_replay = getattr(type(behavior.algorithm), "needs_replay", False)
        wanted = ("replay", "trajectory_replay") if needs_replay else ("block", "trajectories")
        yield Problem(
            (*path, "rollout", "type"),
            f"{behavior.rollout.type} does not go with experiment.env.type {experiment.env.type}; set it to "
            f"{wanted[has_agents(experiment)]}",
            "E0226",
        )
        return
    counts = [integer(behavior.rollout, name) for name in ("num_fragments", "fragments_per_lane")]
    is_in_pieces = keeps or counts != [None, None]
    for name, signal in behavior.reward_signals.items() if is_in_pieces else ():
        if getattr(signal, "normalize_reward", False):
            yield Problem(
                (*path, "reward_signals", name, "normalize_reward"),
                "the discounted return is followed in whole lanes, and trajectories and fragments come in pieces; "
                "leave it out",
                "E0226" if keeps else "E0224",
            )
    yield from _can_be_mirrored(path, behavior)
    yield from _agents_can_learn(path, behavior) if keeps else _lanes_can_learn(path, behavior)


def _can_be_mirrored(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    """Refuses symmetry where a step has fields without a mirror image."""
    learns_from_teammates = getattr(type(behavior.algorithm), "needs_teammates", False)
    if getattr(behavior.algorithm, "use_symmetry", False) and (
        learns_from_teammates or getattr(behavior.algorithm, "clip_per_component", False)
    ):
        beside = (
            "agents of its group"
            if learns_from_teammates
            else "components, whose probabilities are compared one by one"
        )
        yield Problem(
            (*path, "algorithm", "use_symmetry"), f"a mirrored step has no mirrored {beside}; leave it out", "E0220"
        )


def _lanes_can_learn(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    """Refuses settings with lanes that only agents have."""
    if getattr(type(behavior.algorithm), "needs_teammates", False):
        yield Problem(
            (*path, "algorithm", "type"),
            f"{behavior.algorithm.type} learns for groups of agents, which only an environment of agents "
            f"(experiment.env.type agents) has; choose another algorithm",
            "E0226",
        )
    if not (_remembers(behavior) and _keeps_replay(behavior)):
        return
    if integer(behavior.rollout, "num_steps") == 1:
        yield Problem(
            (*path, "rollout", "num_steps"),
            "1 makes sequences of one step, from which policy.memory learns nothing; set it to the steps that a "
            "sequence is to have, such as 16",
            "E0224",
        )
    if (integer(behavior.rollout, "num_return_steps") or 1) > 1:
        yield Problem(
            (*path, "rollout", "num_return_steps"),
            f"policy.memory learns from sequences, whose steps have one reward each, and not from "
            f"{integer(behavior.rollout, 'num_return_steps')}; set it to 1, or leave memory out",
            "E0224",
        )


def _agents_can_learn(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    """Refuses settings with agents that only lanes have, and invalid sizes."""
    for place, event in enumerate(behavior.events):
        if getattr(event, "env_events", ()):
            yield Problem(
                (*path, "events", place, "env_events"),
                "an environment of agents has no lanes that an event could be called with; leave it out",
                "E0226",
            )
    yield from _sizes_fit(path, behavior)


def _sizes_fit(path: KeyPath, behavior: Behavior) -> Iterator[Problem]:
    batch_size, buffer_size = integer(behavior.algorithm, "batch_size"), integer(behavior.rollout, "buffer_size")
    if buffer_size is None:
        return
    if batch_size is not None and batch_size > buffer_size:
        yield Problem(
            (*path, "algorithm", "batch_size"),
            f"{batch_size} is more than {dotted((*path, 'rollout', 'buffer_size'))} {buffer_size}, so that no "
            f"minibatch would ever be full; lower batch_size, or raise buffer_size",
            "E0215",
        )
    horizon = integer(behavior.rollout, "time_horizon")
    if _remembers(behavior) and _keeps_replay(behavior) and horizon is not None and buffer_size < horizon:
        yield Problem(
            (*path, "rollout", "buffer_size"),
            f"{buffer_size} has no room for one sequence of {dotted((*path, 'rollout', 'time_horizon'))} {horizon}; "
            f"raise it",
            "E0225",
        )


def _remembers(behavior: Behavior) -> bool:
    return getattr(behavior.policy, "memory", None) is not None


def _keeps_replay(behavior: Behavior) -> bool:
    return getattr(type(behavior.rollout), "keeps_replay", False)
