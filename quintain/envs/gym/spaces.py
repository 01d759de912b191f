"""Converts Gymnasium spaces to specs; unsupported spaces raise an error with a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.data.spec import (
    BehaviorSpec,
    BoxSpec,
    DictSpec,
    DiscreteSpec,
    MultiDiscreteSpec,
    Spec,
    TupleSpec,
    leaves,
)
from quintain.errors import SpecMismatch

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import Space


def behavior_spec(
    name: str, observation_space: Space, action_space: Space, *, encode_text: bool = False, leave_out: str = ""
) -> BehaviorSpec:
    """Returns the spec of one lane of a Gymnasium environment; one entry of a Dict observation may be excluded."""
    obs = _obs_spec(name, observation_space, encode_text, leave_out)
    if obs is None or not leaves(obs, "obs"):
        hint = "; set text_observations: encode" if text_entries(observation_space) else ""
        raise SpecMismatch(f"env {name!r} has nothing to observe in {_describe(observation_space)}{hint}")
    action = _action_spec(name, action_space)
    if not leaves(action, "action"):
        raise SpecMismatch(f"env {name!r} has an empty action space {action_space}; a policy needs at least one action")
    return BehaviorSpec(obs=obs, action=action)


def text_notes(name: str, space: Space, *, encode_text: bool) -> tuple[str, ...]:
    """Describes how Text entries of an observation are handled, if there are any."""
    found = text_entries(space)
    if not found:
        return ()
    if encode_text:
        return (f"note: env {name!r}: text is encoded as one discrete value per character: {', '.join(found)}",)
    return (
        f"note: env {name!r}: the policy does not see the text in {', '.join(found)}. Set text_observations: encode "
        f"to let it",
    )


def text_entries(space: Space, path: str = "") -> list[str]:
    """Lists the paths of Text entries, and of other spaces whose values are text, as MiniGrid's missions."""
    if _is_text(space):
        return [path or "the observation"]
    return [found for key, below in _children(space) for found in text_entries(below, f"{path}.{key}".lstrip("."))]


def _obs_spec(name: str, space: Space, encode_text: bool, leave_out: str = "") -> Spec | None:
    kind = type(space).__name__
    if kind == "Dict":
        entries = [(k, _obs_spec(name, below, encode_text)) for k, below in _named(name, space) if k != leave_out]
        kept = tuple((key, spec) for key, spec in entries if spec is not None)
        return DictSpec(kept) if kept else None
    if kind == "Tuple":
        specs = [_obs_spec(name, below, encode_text) for below in space.spaces]
        if any(spec is None for spec in specs):
            raise SpecMismatch(f"env {name!r} has text inside a Tuple observation; set text_observations: encode")
        return TupleSpec(tuple(spec for spec in specs if spec is not None))
    if _is_text(space):
        return _text(name, space) if encode_text else None
    if kind == "Box":
        _refuse_empty(name, "observation", space)
        # uint8 stays as it is (images are large); everything else is computed with as float32.
        return _box(space, "uint8" if space.dtype == np.uint8 else "float32")
    if kind == "MultiBinary":
        shape = tuple(int(n) for n in np.atleast_1d(space.shape))
        size = int(np.prod(shape))
        return BoxSpec(shape=shape, dtype="float32", low=(0.0,) * size, high=(1.0,) * size)
    if kind == "Discrete":
        return DiscreteSpec(n=int(space.n), start=int(space.start))
    if kind == "MultiDiscrete":
        return _multi_discrete(space)
    raise SpecMismatch(
        f"env {name!r} has a {_describe(space)} observation space, which is not supported; Box, Discrete, "
        f"MultiDiscrete, MultiBinary, Text and Dict or Tuple of these are. Wrap it to turn it into one of them"
    )


def _action_spec(name: str, space: Space) -> Spec:
    kind = type(space).__name__
    if kind == "Dict":
        return DictSpec(tuple((key, _action_spec(name, below)) for key, below in _named(name, space)))
    if kind == "Tuple":
        return TupleSpec(tuple(_action_spec(name, below) for below in space.spaces))
    if kind == "Discrete":
        if space.n < 1:
            raise SpecMismatch(f"env {name!r} has an empty action space {space}; a policy needs at least one action")
        return DiscreteSpec(n=int(space.n), start=int(space.start))
    if kind == "MultiDiscrete":
        return _multi_discrete(space)
    if kind == "MultiBinary":
        return MultiDiscreteSpec((2,) * int(np.prod(space.shape)), env_shape=_arrangement(space.shape))
    if kind == "Box" and np.issubdtype(space.dtype, np.floating):
        _refuse_empty(name, "action", space)
        return _box(space, "float32")
    raise SpecMismatch(
        f"env {name!r} has a {_describe(space)} action space, which is not supported; Discrete, MultiDiscrete, "
        f"MultiBinary, float Box and Dict or Tuple of these are"
    )


def _named(name: str, space: Space) -> list[tuple[str, Space]]:
    """Returns the entries of a Dict space; their names become parts of field names."""
    for key in space.spaces:
        if not isinstance(key, str) or "." in key:
            raise SpecMismatch(f"env {name!r} has a Dict space with the key {key!r}; keys must be text without dots")
    return list(space.spaces.items())


def _multi_discrete(space: Space) -> MultiDiscreteSpec:
    starts = tuple(int(n) for n in np.ravel(getattr(space, "start", 0)))
    return MultiDiscreteSpec(
        nvec=tuple(int(n) for n in np.ravel(space.nvec)),
        starts=starts if any(starts) else (),
        env_shape=_arrangement(np.shape(space.nvec)),
    )


def _arrangement(shape: tuple[int, ...]) -> tuple[int, ...]:
    return () if len(shape) == 1 else tuple(int(n) for n in shape)


def _is_text(space: Space) -> bool:
    return getattr(getattr(space, "dtype", None), "kind", "") == "U"


def _text(name: str, space: Space) -> MultiDiscreteSpec:
    if type(space).__name__ != "Text":
        raise SpecMismatch(
            f"env {name!r} has text in a {type(space).__name__}, which does not list its characters, so it cannot be "
            f"encoded. Leave text_observations out, or wrap it"
        )
    # Sorted, because the order of a set of characters differs from process to process.
    characters = "".join(sorted(space.character_list))
    return MultiDiscreteSpec((len(characters) + 1,) * int(space.max_length), characters=characters)


def _children(space: Space) -> list[tuple[str, Space]]:
    below = getattr(space, "spaces", None)
    if below is None:
        return []
    return list(below.items()) if hasattr(below, "items") else [(str(i), s) for i, s in enumerate(below)]


def _box(space: Space, dtype: str) -> BoxSpec:
    low, high = (tuple(float(x) for x in np.ravel(bound)) for bound in (space.low, space.high))
    return BoxSpec(shape=tuple(int(n) for n in space.shape), dtype=dtype, low=low, high=high)


def _refuse_empty(name: str, which: str, space: Space) -> None:
    if int(np.prod(space.shape, dtype=np.int64)) < 1:
        raise SpecMismatch(f"env {name!r} has an empty {which} space {space}; it needs at least one number")


def _describe(space: Space) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 60 else f"{type(space).__name__}"
