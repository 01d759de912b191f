"""Where an environment keeps its action mask: in `info["action_mask"]`, or in a method `action_masks()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quintain.errors import EnvError

MaskSource = Callable[[Any, Any], Any]
"""Returns the mask of an environment that just gave this info."""


def find_mask_source(env: Any, seed: int) -> MaskSource | None:
    """Looks where the environment keeps its mask, by one reset; None if it has none."""
    if callable(_method(env)):
        return lambda env, info: _method(env)()
    try:
        _, info = env.reset(seed=seed)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise EnvError(f"the environment failed in its first reset(): {reason}", code="E0502") from error
    return (lambda env, info: info["action_mask"]) if "action_mask" in (info or {}) else None


def _method(env: Any) -> Any:
    return getattr(getattr(env, "unwrapped", env), "action_masks", None)
