"""Compares the spaces in a checkpoint's manifest, which is untrusted, with the current ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from quintain.data.spec import in_short
from quintain.errors import CheckpointIncompatible

if TYPE_CHECKING:
    from quintain.data.spec import BehaviorSpec

Told: TypeAlias = Any
"""An untrusted value of a manifest."""


LANES = "default"
"""The behaviour of a manifest with one unnamed spec, as lanes had until 0.2."""


def specs_in(about: Mapping[str, Told]) -> dict[str, Told]:
    """Returns the spaces in a manifest, by behaviour, unparsed."""
    behaviors, spec = about.get("behaviors"), about.get("spec")
    if behaviors is None and isinstance(spec, Mapping):
        behaviors = spec.get("behaviors", {LANES: spec})
    return dict(behaviors) if isinstance(behaviors, Mapping) else {}


def require_same_specs(specs: Mapping[str, BehaviorSpec], about: Mapping[str, Told]) -> None:
    """Refuses a checkpoint whose manifest has other spaces than these.

    With one behaviour, its name is ignored: lanes have none.
    """
    saved, own = _in_short(specs_in(about)), {name: spec.to_dict() for name, spec in specs.items()}
    is_same = list(saved.values()) == list(own.values()) if len(own) == 1 else saved == own
    if not is_same:
        here = "; ".join(f"{name}: {spec}" if len(specs) > 1 else str(spec) for name, spec in specs.items())
        raise CheckpointIncompatible(
            f"checkpoint is for {_described(saved)}; this env has {here}. Use the environment it was trained with"
        )


def _in_short(saved: Told) -> Told:
    """Returns spaces with equal bounds written once, which older checkpoints have in full."""
    if not isinstance(saved, Mapping):
        return [_in_short(each) for each in saved] if isinstance(saved, list) else saved
    bounds = {k: in_short(v) for k, v in saved.items() if k in ("low", "high") and isinstance(v, list)}
    return {name: bounds.get(name) or _in_short(below) for name, below in saved.items()}


def _described(saved: Mapping[str, Told]) -> str:
    if len(saved) == 1:
        return _describe(next(iter(saved.values())))
    return "; ".join(f"{name}: {_describe(spec)}" for name, spec in saved.items()) or "unknown spaces"


def _describe(spec: Told) -> str:
    if not isinstance(spec, Mapping):
        return "unknown spaces"
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
