"""What Python users may put into a Trainer's slots: names, settings, factories and ready objects, in any mixture."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium

from quintain import registry
from quintain.algorithms.base import Algorithm
from quintain.assemble import Slots, assemble_parts
from quintain.envs.base import Env
from quintain.errors import SettingsError
from quintain.follow import Follower
from quintain.placements.torchrun import place_in_torchrun
from quintain.policies.base import Policy
from quintain.rank_state import share_policy
from quintain.ranks import NUM_RANKS, num_ranks_of, with_ranks_of_torchrun
from quintain.run import Run
from quintain.run_output import make_writers
from quintain.services.queued_writer import QueuedWriter
from quintain.services.tensorboard_writer import SummaryRows
from quintain.services.writers import Writer, WriterGroup
from quintain.settings.base import PartSettings
from quintain.settings.sources import PYTHON
from quintain.settings.tree import RunFile
from quintain.trainers.base import Parts
from quintain.world import Alone, Gloo, World

_STEPS_PER_BATCH = 1024
_EVENTS = "experiment.behaviors.default.events"


def parts_from_slots(policy: Any, env: Any, algorithm: Any, settings: dict[str, Any]) -> Parts:
    """Builds the parts of `Trainer(policy, env, algorithm, **settings)`; without an algorithm the first slot is it."""
    if algorithm is None:
        policy, algorithm = None, policy
    settings = dict(settings)
    own_writer = settings.pop("writer", None)
    if policy is not None and isinstance(algorithm, Algorithm) and algorithm.policy is not policy:
        raise SettingsError("the algorithm given trains another policy than the one given; leave the policy out")
    behavior: dict[str, Any] = {"algorithm": _settings("algorithm", algorithm)}
    if policy is not None and not isinstance(policy, Policy):
        behavior["policy"] = _settings("policy", policy)
    if _is_instance(env):
        # A ready environment has as many lanes as it has; more steps make up for it, so that batches are not tiny.
        behavior["rollout"] = {"num_steps": max(128, _STEPS_PER_BATCH // _num_lanes(env))}
    world = _join_torchrun()
    experiment = {"env": _env_settings(env, world.size), "behaviors": {"default": behavior}}
    run_file = RunFile.from_mapping({"experiment": experiment}, origin=PYTHON, changes=settings)
    run_file = with_ranks_of_torchrun(run_file, is_new=True)
    _refuse_disagreement(run_file, world)
    evaluation_env = _maker_of_more(env) if _is_instance(env) else None
    note = ""
    if _is_instance(env) and evaluation_env is None:
        run_file, note = _without_evaluation(run_file)
    slots = Slots(
        env=None if isinstance(env, str | PartSettings) else env,
        evaluation_env=evaluation_env,
        policy=policy if isinstance(policy, Policy) else _policy_of(algorithm),
        make_algorithm=(lambda *_: algorithm) if isinstance(algorithm, Algorithm) else None,
    )
    if world.rank:
        parts = assemble_parts(run_file, Follower(run_file), WriterGroup([]), slots, world)
    else:
        run = Run(run_file, [*make_writers(run_file), *_own_writers(own_writer)])
        parts = assemble_parts(run_file, run, run.writer, slots, world)
        if note:
            run.writer.note(note)
    share_policy(parts.policy, world)
    return parts


def _own_writers(slot: Any) -> list[Writer]:
    """Returns the writer that a user brought: one of ours as it is, a SummaryWriter behind a queue."""
    if slot is None:
        return []
    if hasattr(slot, "add_scalar"):
        return [QueuedWriter(SummaryRows(slot), type(slot).__name__)]
    if all(callable(getattr(slot, name, None)) for name in ("open", "write", "note", "close")):
        return [slot]
    raise SettingsError(
        f"writer slot got a {type(slot).__name__}; pass a SummaryWriter, or an object with open, write, note and close"
    )


def _join_torchrun() -> World:
    place = place_in_torchrun()
    return Alone() if place is None else Gloo(*place)


def _refuse_disagreement(run_file: RunFile, world: World) -> None:
    """Refuses ranks that nobody started, and ranks that were told different things."""
    if num_ranks_of(run_file) != world.size:
        raise SettingsError(
            f"{NUM_RANKS} is {num_ranks_of(run_file)}: from Python, start the script once for each rank with "
            f"torchrun --nproc-per-node {num_ranks_of(run_file)} SCRIPT",
            code="E0241",
        )
    marks = [int(run_file.fingerprint()[:12], 16)]
    if any(others != marks for others in world.gather(marks)):
        raise SettingsError("the ranks of this run were given different settings; give all the same", code="E0241")


def _policy_of(algorithm: Any) -> Policy | None:
    return algorithm.policy if isinstance(algorithm, Algorithm) else None


def _settings(kind: str, slot: Any) -> Any:
    if isinstance(slot, Algorithm):
        return slot.settings
    if isinstance(slot, str):
        registry.get(kind, slot)
        return {"type": slot}
    if isinstance(slot, PartSettings):
        return slot
    found = type(slot).__name__
    raise SettingsError(f"{kind} slot got a {found}; pass a registered name, its settings, or a ready object")


def _env_settings(slot: Any, num_ranks: int) -> Any:
    if isinstance(slot, PartSettings):
        return slot
    if isinstance(slot, str):
        return registry.env_named(slot)
    if _is_instance(slot):
        spec = _gym_spec(slot)
        return {
            "type": "gym",
            "id": type(slot).__name__ if spec is None else spec.id,
            # Each rank brings an object of its own.
            "num_lanes": _num_lanes(slot) * num_ranks,
            "group_size": int(getattr(slot, "group_size", 1)),
        }
    return {"type": "gym", "id": getattr(slot, "__name__", type(slot).__name__)}


def _is_instance(slot: Any) -> bool:
    return hasattr(slot, "step") and not isinstance(slot, type)


def _num_lanes(env: Any) -> int:
    return int(getattr(env, "num_lanes", None) or getattr(env, "num_envs", None) or 1)


def _gym_spec(env: Any) -> Any:
    """Returns how Gymnasium made this object, if it did; our own environments have a spec of another kind."""
    spec = None if isinstance(env, Env) else getattr(env, "spec", None)
    return spec if isinstance(spec, gymnasium.envs.registration.EnvSpec) else None


def _maker_of_more(env: Any) -> Any:
    """Returns what makes environments like this object, or None where nobody knows how it came about.

    Wrappers around a vector environment leave no trace in its spec, so what is wrapped cannot be made again.
    """
    spec = _gym_spec(env)
    if spec is None or isinstance(env, gymnasium.vector.VectorWrapper):
        return None
    return partial(gymnasium.make, spec, disable_env_checker=True)


def _without_evaluation(run_file: RunFile) -> tuple[RunFile, str]:
    """Leaves evaluation out: stepping the training environment would disturb it, and there is no other."""
    events = next(iter(run_file.experiment.behaviors.values())).events
    kept = [event for event in events if event.type != "evaluate"]
    if len(kept) == len(events):
        return run_file, ""
    return run_file.replace(_EVENTS, kept), (
        "note: no evaluation, because the environment given cannot be made a second time. Pass its Gymnasium id, its "
        "class or a factory to have it"
    )
