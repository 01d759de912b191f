"""Gymnasium spaces as specs, and a sentence for each space that is not supported."""

from __future__ import annotations

from typing import Any

import numpy as np

from quintain.data.spec import BehaviorSpec, BoxSpec, DiscreteSpec
from quintain.errors import SpecMismatch


def behavior_spec(name: str, observation_space: Any, action_space: Any) -> BehaviorSpec:
    """Describes one lane of a Gymnasium environment."""
    return BehaviorSpec(obs=_obs_spec(name, observation_space), action=_action_spec(name, action_space))


def _obs_spec(name: str, space: Any) -> BoxSpec:
    if type(space).__name__ != "Box":
        raise SpecMismatch(
            f"env {name!r} has a {_describe(space)} observation space; this version takes Box observations. "
            f"Wrap it with gymnasium.wrappers.FlattenObservation"
        )
    _refuse_empty(name, "observation", space)
    # uint8 stays as it is (images are large); everything else is computed with as float32.
    return _box(space, "uint8" if space.dtype == np.uint8 else "float32")


def _action_spec(name: str, space: Any) -> BoxSpec | DiscreteSpec:
    kind = type(space).__name__
    if kind == "Discrete":
        if space.n < 1:
            raise SpecMismatch(f"env {name!r} has an empty action space {space}; a policy needs at least one action")
        return DiscreteSpec(n=int(space.n), start=int(space.start))
    if kind == "Box" and np.issubdtype(space.dtype, np.floating):
        _refuse_empty(name, "action", space)
        return _box(space, "float32")
    raise SpecMismatch(
        f"env {name!r} has a {_describe(space)} action space; this version takes Discrete and float Box actions"
    )


def _box(space: Any, dtype: str) -> BoxSpec:
    low, high = (tuple(float(x) for x in np.ravel(bound)) for bound in (space.low, space.high))
    return BoxSpec(shape=tuple(int(n) for n in space.shape), dtype=dtype, low=low, high=high)


def _refuse_empty(name: str, which: str, space: Any) -> None:
    if int(np.prod(space.shape, dtype=np.int64)) < 1:
        raise SpecMismatch(f"env {name!r} has an empty {which} space {space}; it needs at least one number")


def _describe(space: Any) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 60 else f"{type(space).__name__}"
