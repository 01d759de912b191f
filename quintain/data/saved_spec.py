"""Spaces as a checkpoint's manifest names them, which may say anything: compared with those at hand, and described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from quintain.errors import CheckpointIncompatible

if TYPE_CHECKING:
    from quintain.typing import JsonObject

Told: TypeAlias = Any
"""What a manifest says at one place; a file of another origin may say anything there."""


class HasSpaces(Protocol):
    """The spec of one behaviour, or of several."""

    def to_dict(self) -> JsonObject: ...


def require_same_spec(spec: HasSpaces, about: Mapping[str, Told]) -> None:
    """Refuses a checkpoint whose manifest names other spaces than this spec, of one behaviour or of several."""
    saved = about.get("spec")
    if saved != spec.to_dict():
        raise CheckpointIncompatible(
            f"checkpoint is for {_describe(saved)}; this env has {spec}. Use the environment it was trained with"
        )


def _describe(spec: Told) -> str:
    if not isinstance(spec, Mapping):
        return "unknown spaces"
    if isinstance(behaviors := spec.get("behaviors"), Mapping):
        return "; ".join(f"{name}: {_describe(each)}" for name, each in behaviors.items())
    masked = " with masks" if spec.get("mask_size") else ""
    return ", ".join(f"{which} {_describe_space(spec.get(which))}" for which in ("obs", "action")) + masked


def _describe_space(space: Told) -> str:
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


def member_prefix(behavior: str) -> str:
    """Returns what the names of a behaviour's weights begin with in the state of all policies."""
    return f"members.{member_name(behavior)}."


def member_name(behavior: str) -> str:
    """Returns the name of a behaviour's policy as a module."""
    # A module's name may have no dot in it, a behaviour's may.
    return behavior.replace(".", "%2E")
