"""Finds an environment's action mask.

It may be the entry `action_mask` of a Dict observation, the result of a method `action_masks()`, or
`info["action_mask"]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from quintain.data.masks import mask_rows
from quintain.data.spec import BehaviorSpec, Spec, discrete_sizes
from quintain.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from quintain.envs.gym.protocols import GymEnv, GymVectorEnv, Returned, Space
    from quintain.typing import Array, Info, Observation

MASK = "action_mask"
MaskSource = Literal["", "obs", "method", "info"]
"""The place of the mask; empty if there is none."""


def declared_mask(env: GymEnv | GymVectorEnv, observation_space: Space, action: Spec) -> MaskSource:
    """Returns the place of the mask as far as it is known before the first reset."""
    if not discrete_sizes(action):
        return ""
    if type(observation_space).__name__ == "Dict" and MASK in observation_space.spaces:
        return "obs"
    return "method" if callable(_method(env)) else ""


def masked(spec: BehaviorSpec, source: MaskSource) -> BehaviorSpec:
    """Returns the spec with or without masks."""
    return BehaviorSpec(spec.obs, spec.action, mask_size=sum(discrete_sizes(spec.action)) if source else 0)


def mask_notes(name: str, source: MaskSource) -> tuple[str, ...]:
    """Says that masks were found where they are not declared; those of an observation are seen in its space."""
    places = {"info": f'info["{MASK}"]', "method": "action_masks()"}
    if source not in places:
        return ()
    return (f"note: env {name!r}: action masks from {places[source]} are used; use_action_masks=false ignores them",)


def read_mask(
    name: str, source: MaskSource, env: GymEnv | GymVectorEnv, obs: Observation, info: Info | None
) -> Returned:
    """Returns the environment's mask for this observation and info."""
    if source == "method":
        return _method(env)()
    holder, where = (obs, "its observation") if source == "obs" else (info or {}, "info")
    if MASK not in holder:
        raise EnvError(f"env {name!r} gave no {MASK} in {where}, though it did at its first reset", code="E0515")
    return holder[MASK]


def checked_rows(name: str, action: Spec, value: ArrayLike, wanted: Array) -> Array:
    """Converts an environment's mask to rows of the given lanes, or raises an error that describes the problem."""
    try:
        return mask_rows(action, value, wanted)
    except ValueError as error:
        raise EnvError(f"env {name!r} gave {error}", code="E0515") from error


def offered(env: GymEnv | GymVectorEnv, method: str) -> Returned:
    """Returns a method of the environment or of its outermost wrapper that has it, or None."""
    while not hasattr(env, method):
        if "env" not in getattr(env, "__dict__", ()):
            return None
        env = vars(env)["env"]
    return getattr(env, method)


def _method(env: GymEnv | GymVectorEnv) -> Returned:
    # Some vector environments are made of single ones, of which each has the method.
    singles: Sequence[GymEnv] = getattr(env, "envs", ())
    if len(singles) and callable(offered(singles[0], "action_masks")):
        return lambda: np.stack([offered(single, "action_masks")() for single in singles])
    return offered(env, "action_masks")
