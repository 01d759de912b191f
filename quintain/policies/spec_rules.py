"""Refuses policy settings that have no meaning for the given spaces, before anything is built."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, BoxSpec, LeafSpec, leaves
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies.settings import ActorCriticSettings, NetworkSettings


def refuse_misfits(spec: BehaviorSpec, settings: ActorCriticSettings) -> None:
    """Raises for the first setting that has no meaning for these spaces."""
    for name in ("squash_actions", "state_dependent_std", "use_sde"):
        require_boxes(spec, settings, name)
    if settings.use_sde and settings.state_dependent_std:
        raise SettingsError(
            "policy.use_sde and policy.state_dependent_std both make the standard deviation depend on the state. Leave "
            "one out",
            code="E0224",
        )
    if settings.squash_actions:
        require_bounds(spec, "policy.squash_actions needs")
    refuse_unscalable(spec, settings)


def require_boxes(spec: BehaviorSpec, settings: NetworkSettings, name: str) -> None:
    """Raises if a setting about continuous actions is on and there are none."""
    has_boxes = any(isinstance(leaf, BoxSpec) for leaf in leaves(spec.action, f.ACTION).values())
    if settings.model_dump(include={name})[name] and not has_boxes:
        raise SpecMismatch(f"policy.{name} is about Box actions, and there are none in {spec.action}. Leave it out")


def refuse_unscalable(spec: BehaviorSpec, settings: NetworkSettings) -> None:
    """Raises if observations are to be normalized and none is continuous."""
    boxes = [leaf for leaf in leaves(spec.obs, f.OBS).values() if isinstance(leaf, BoxSpec)]
    are_scaled = [settings.image_encoder == "flatten" or not leaf.is_image for leaf in boxes]
    if settings.normalize_obs and not any(are_scaled):
        raise SpecMismatch(
            f"policy.normalize_obs scales continuous values, and there are none in {spec.obs}: discrete values and "
            f"images have known scales. Leave it out"
        )


def require_bounds(spec: BehaviorSpec, who_needs: str) -> None:
    """Raises for the first continuous action that is not bounded on both sides."""
    for name, leaf in leaves(spec.action, f.ACTION).items():
        if isinstance(leaf, BoxSpec) and not (np.isfinite(leaf.low).all() and np.isfinite(leaf.high).all()):
            raise SpecMismatch(
                f"{who_needs} a lower and an upper bound of every number, which {name} {leaf} does not have. Leave it "
                f"out, or give the action space bounds"
            )


def observed(spec: BehaviorSpec, group: str, wanted: tuple[str, ...] | None) -> dict[str, LeafSpec]:
    """Returns the leaves below the entries in `policy.<group>_obs`; None selects all."""
    every = leaves(spec.obs, f.OBS)
    if wanted is None:
        return every
    chosen = {path for name in wanted for path in _below(every, name, group)}
    if not chosen:
        raise SpecMismatch(f"policy.{group}_obs is empty; name at least one entry of {spec.obs}, or leave it out")
    return {path: leaf for path, leaf in every.items() if path in chosen}


def _below(every: Mapping[str, LeafSpec], name: str, group: str) -> list[str]:
    path = f"{f.OBS}.{name}"
    found = [leaf for leaf in every if leaf == path or leaf.startswith(f"{path}.")]
    if not found:
        have = ", ".join(p.removeprefix(f"{f.OBS}.") for p in every) if f.OBS not in every else "no entries"
        raise SpecMismatch(f"policy.{group}_obs names {name!r}, which the observation does not have; it has {have}")
    return found
