"""Putting a checkpoint's state back, strictly: anything missing, extra or of another shape is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quintain.errors import CheckpointIncompatible
from quintain.rank_state import RANKS, deal_anew, share_of
from quintain.services.checkpoint_catalog import Loaded

if TYPE_CHECKING:
    from quintain.policies.base import Policy
    from quintain.trainers.base import Trainer
    from quintain.typing import State


def require_same_spec(policy: Policy, loaded: Loaded) -> None:
    """Refuses a checkpoint that was made for other spaces."""
    saved, now = loaded.manifest.about.get("spec"), policy.spec.to_dict()
    if saved != now:
        raise CheckpointIncompatible(
            f"checkpoint is for {_describe(saved)}; this env has {policy.spec}. Use the environment it was trained with"
        )


def restore_rank(trainer: Trainer, state: State) -> None:
    """Loads this rank's share of a state strictly; anything missing, extra or of another shape is incompatible.

    A state of another number of ranks is dealt anew: what all ranks have alike is kept, and lanes begin new episodes.
    """
    try:
        if num_ranks_in(state) == trainer.world.size:
            trainer.load_state_dict(share_of(state, trainer.world.rank))
        else:
            deal_anew(trainer, state)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise CheckpointIncompatible(
            f"the checkpoint does not fit this run ({type(error).__name__}: {first}). Resume with the settings it was "
            f"made with"
        ) from error


def num_ranks_in(state: State) -> int:
    """Returns how many ranks a state is of."""
    return len(state["training"].get(RANKS, {})) or 1


def restore_policy(policy: Policy, loaded: Loaded) -> None:
    """Loads only the policy's weights and normaliser, strictly."""
    from quintain.trainers.base import as_tensors

    try:
        policy.load_state_dict(as_tensors(loaded.state["training"]["policy"]))
    except (KeyError, RuntimeError) as error:
        first = " ".join(str(error).split())[:200]
        raise CheckpointIncompatible(f"the checkpoint's policy does not fit this one ({first})") from error


def _describe(spec: Any) -> str:
    if not isinstance(spec, Mapping):
        return "unknown spaces"
    masked = " with masks" if spec.get("mask_size") else ""
    return ", ".join(f"{which} {_describe_space(spec.get(which))}" for which in ("obs", "action")) + masked


def _describe_space(space: Any) -> str:
    kind = space.get("type") if isinstance(space, Mapping) else None
    if kind == "discrete":
        return f"Discrete({space['n']})"
    if kind == "multi_discrete":
        return f"MultiDiscrete{space['nvec']}"
    if kind == "dict":
        return f"Dict({', '.join(f'{name}: {_describe_space(below)}' for name, below in space['entries'].items())})"
    if kind == "tuple":
        return f"Tuple({', '.join(map(_describe_space, space['entries']))})"
    return f"Box({', '.join(map(str, space['shape']))})" if kind == "box" else "unknown"
