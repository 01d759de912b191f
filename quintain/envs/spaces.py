"""Gymnasium spaces as specs, values of those spaces as arrays, and a sentence for each space that is not supported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.data.spec import (
    BehaviorSpec,
    BoxSpec,
    DictSpec,
    DiscreteSpec,
    LeafSpec,
    MultiDiscreteSpec,
    Spec,
    TupleSpec,
)
from quintain.errors import EnvError, SpecMismatch

if TYPE_CHECKING:
    from quintain.typing import Array


def behavior_spec(
    name: str, observation_space: Any, action_space: Any, *, encode_text: bool = False, mask_size: int = 0
) -> BehaviorSpec:
    """Describes one lane of a Gymnasium environment."""
    obs = _obs_spec(name, observation_space, encode_text)
    if obs is None:
        raise SpecMismatch(f"env {name!r} has nothing to observe but text; set text_observations: encode")
    return BehaviorSpec(obs=obs, action=_action_spec(name, action_space), mask_size=mask_size)


def text_entries(space: Any, path: str = "") -> list[str]:
    """Lists the paths of Text entries, for the note that says what became of them."""
    if type(space).__name__ == "Text":
        return [path or "the observation"]
    return [found for key, below in _children(space) for found in text_entries(below, f"{path}.{key}".lstrip("."))]


def as_array(leaf: LeafSpec, space: Any, value: Any) -> Any:
    """Turns one value of a space into what the leaf stores: choices from zero, text as numbers of characters."""
    if isinstance(value, str):
        known = {character: i + 1 for i, character in enumerate(space.character_list)}
        codes = np.zeros(space.max_length, dtype=np.int64)
        codes[: len(value)] = [known.get(character, 0) for character in value]
        return codes
    if isinstance(leaf, DiscreteSpec) and leaf.start:
        return np.asarray(value) - leaf.start
    if isinstance(leaf, MultiDiscreteSpec):
        return np.asarray(value).reshape(-1)
    return value


def leaf_spaces(spec: Spec, space: Any, name: str) -> dict[str, Any]:
    """Returns the Gymnasium space behind each leaf of a spec, by field name."""
    if isinstance(spec, DictSpec):
        return {p: s for key, b in spec.entries for p, s in leaf_spaces(b, space[key], f"{name}.{key}").items()}
    if isinstance(spec, TupleSpec):
        return {p: s for i, b in enumerate(spec.entries) for p, s in leaf_spaces(b, space[i], f"{name}.{i}").items()}
    return {name: space}


def as_mask(name: str, value: Any, mask_size: int) -> Array:
    """Turns what an environment calls its mask, an array or a dict or tuple of them, into one row of choices."""
    parts = [np.ravel(part) for part in _mask_parts(value)]
    row = (parts[0] if len(parts) == 1 else np.concatenate(parts)).astype(np.bool_)
    if row.shape != (mask_size,):
        raise EnvError(
            f"env {name!r} gave an action mask of {row.size} choices, expected {mask_size}: one for each choice of "
            f"each discrete action, in order",
            code="E0515",
        )
    if not row.any():
        raise EnvError(
            f"env {name!r} gave an action mask that allows nothing; at least one must be allowed", code="E0515"
        )
    return row


def _mask_parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [part for below in value.values() for part in _mask_parts(below)]
    if isinstance(value, tuple):
        return [part for below in value for part in _mask_parts(below)]
    return [value]


def _obs_spec(name: str, space: Any, encode_text: bool) -> Spec | None:
    kind = type(space).__name__
    if kind == "Dict":
        entries = [(key, _obs_spec(name, below, encode_text)) for key, below in space.spaces.items()]
        kept = tuple((key, spec) for key, spec in entries if spec is not None)
        return DictSpec(kept) if kept else None
    if kind == "Tuple":
        specs = [_obs_spec(name, below, encode_text) for below in space.spaces]
        if any(spec is None for spec in specs):
            raise SpecMismatch(f"env {name!r} has text inside a Tuple observation; set text_observations: encode")
        return TupleSpec(tuple(spec for spec in specs if spec is not None))
    if kind == "Text":
        return MultiDiscreteSpec((len(space.character_list) + 1,) * space.max_length) if encode_text else None
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
        return MultiDiscreteSpec(tuple(int(n) for n in np.ravel(space.nvec)))
    raise SpecMismatch(
        f"env {name!r} has a {_describe(space)} observation space, which is not supported; Box, Discrete, "
        f"MultiDiscrete, MultiBinary, Text and Dict or Tuple of these are. Wrap it to turn it into one of them"
    )


def _action_spec(name: str, space: Any) -> Spec:
    kind = type(space).__name__
    if kind == "Dict":
        return DictSpec(tuple((key, _action_spec(name, below)) for key, below in space.spaces.items()))
    if kind == "Tuple":
        return TupleSpec(tuple(_action_spec(name, below) for below in space.spaces))
    if kind == "Discrete":
        if space.n < 1:
            raise SpecMismatch(f"env {name!r} has an empty action space {space}; a policy needs at least one action")
        return DiscreteSpec(n=int(space.n), start=int(space.start))
    if kind == "MultiDiscrete":
        return MultiDiscreteSpec(tuple(int(n) for n in np.ravel(space.nvec)))
    if kind == "MultiBinary":
        return MultiDiscreteSpec((2,) * int(np.prod(space.shape)))
    if kind == "Box" and np.issubdtype(space.dtype, np.floating):
        _refuse_empty(name, "action", space)
        return _box(space, "float32")
    raise SpecMismatch(
        f"env {name!r} has a {_describe(space)} action space, which is not supported; Discrete, MultiDiscrete, "
        f"MultiBinary, float Box and Dict or Tuple of these are"
    )


def _children(space: Any) -> list[tuple[str, Any]]:
    below = getattr(space, "spaces", None)
    if below is None:
        return []
    return list(below.items()) if hasattr(below, "items") else [(str(i), s) for i, s in enumerate(below)]


def _box(space: Any, dtype: str) -> BoxSpec:
    low, high = (tuple(float(x) for x in np.ravel(bound)) for bound in (space.low, space.high))
    return BoxSpec(shape=tuple(int(n) for n in space.shape), dtype=dtype, low=low, high=high)


def _refuse_empty(name: str, which: str, space: Any) -> None:
    if int(np.prod(space.shape, dtype=np.int64)) < 1:
        raise SpecMismatch(f"env {name!r} has an empty {which} space {space}; it needs at least one number")


def _describe(space: Any) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 60 else f"{type(space).__name__}"
