"""Where an environment keeps its action mask.

It may be an entry `action_mask` of a Dict observation, what a method `action_masks()` returns, or
`info["action_mask"]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from quintain.data.masks import mask_rows
from quintain.data.spec import BehaviorSpec, Spec, choice_sizes
from quintain.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from quintain.envs.gym.protocols import GymEnv, GymVectorEnv, Returned, Space
    from quintain.typing import Array, Info, Observation

MASK = "action_mask"
MaskSource = Literal["", "obs", "method", "info"]
"""Where the mask is; nowhere if empty."""


def declared_mask(env: GymEnv | GymVectorEnv, observation_space: Space, action: Spec) -> MaskSource:
    """Says where an environment keeps its mask as far as that can be seen before its first reset."""
    if not choice_sizes(action):
        return ""
    if type(observation_space).__name__ == "Dict" and MASK in observation_space.spaces:
        return "obs"
    return "method" if callable(_method(env)) else ""


def masked(spec: BehaviorSpec, source: MaskSource) -> BehaviorSpec:
    """Returns the spec of an environment that has masks, or has none."""
    return BehaviorSpec(spec.obs, spec.action, mask_size=sum(choice_sizes(spec.action)) if source else 0)


def read_mask(
    name: str, source: MaskSource, env: GymEnv | GymVectorEnv, obs: Observation, info: Info | None
) -> Returned:
    """Returns what the environment calls its mask after it gave this observation and this info."""
    if source == "method":
        return _method(env)()
    holder, where = (obs, "its observation") if source == "obs" else (info or {}, "info")
    if MASK not in holder:
        raise EnvError(f"env {name!r} gave no {MASK} in {where}, though it did at its first reset", code="E0515")
    return holder[MASK]


def checked_rows(name: str, action: Spec, value: ArrayLike, wanted: Array) -> Array:
    """Turns what an environment calls its mask into rows of the wanted lanes, or says what is wrong with it."""
    try:
        return mask_rows(action, value, wanted)
    except ValueError as error:
        raise EnvError(f"env {name!r} gave {error}", code="E0515") from error


def offered(env: GymEnv | GymVectorEnv, method: str) -> Returned:
    """Returns a method of the environment or of one of its wrappers, the outermost that has it, or None."""
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
