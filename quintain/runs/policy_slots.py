"""The policy in a slot of a Python call: a name, settings, a class, a torch network, or a ready policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

from torch import nn

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.settings.base import PartSettings
from quintain.settings.normalize import of_stable_baselines
from quintain.settings.spellings import BY_SPACES

if TYPE_CHECKING:
    from quintain.typing import JsonObject

PolicySlot: TypeAlias = Any
"""A policy's name, settings, class, network, or the policy itself."""

_trained: WeakSet[nn.Module] = WeakSet()
"""Networks that a trainer of this process has taken."""


def policy_settings(slot: PolicySlot, notes: list[str]) -> PartSettings | JsonObject:
    """Returns the settings of a policy's slot; classes and networks are named, so that settings can hold them."""
    if isinstance(slot, str):
        if slot in BY_SPACES:
            return of_stable_baselines(slot, notes)
        registry.get("policy", slot)
        return {"type": slot}
    if isinstance(slot, PartSettings):
        return slot
    if isinstance(slot, Mapping):
        given = dict(slot)
        given |= {"network": network_settings(given["network"], notes)} if "network" in given else {}
        if isinstance(kind := given.get("type"), type):
            given["type"] = registry.name_for("policy", kind)
        return given
    if isinstance(slot, type) and issubclass(slot, Policy):
        return {"type": registry.name_for("policy", slot)}
    if isinstance(slot, nn.Module) or callable(slot):
        return {"network": network_settings(slot, notes)}
    raise SettingsError(
        f"policy slot got a {type(slot).__name__}; pass a registered name, settings, a class, a torch network, or a "
        f"ready policy"
    )


def network_settings(slot: PolicySlot, notes: list[str]) -> PolicySlot:
    """Returns the settings of a network's slot; classes, functions and objects are named."""
    if isinstance(slot, str | Mapping | PartSettings | None):
        return slot
    return {"type": _name_of_network(slot, notes)}


def _name_of_network(slot: PolicySlot, notes: list[str]) -> str:
    if not isinstance(slot, nn.Module):
        return registry.name_for("network", slot)
    if slot in _trained:
        notes.append(
            f"note: this {type(slot).__name__} was given to a trainer before and goes on from its weights; pass its "
            f"class to begin with new ones"
        )
    _trained.add(slot)
    return registry.name_for("network", _bring(slot))


def _bring(network: nn.Module) -> Callable[[], nn.Module]:
    """Returns a function that returns the network itself, and copies of it from the second call on."""
    has_been_taken = False

    @wraps(type(network), assigned=("__name__", "__doc__"), updated=())
    def bring() -> nn.Module:
        nonlocal has_been_taken
        is_first, has_been_taken = not has_been_taken, True
        return network if is_first else deepcopy(network)

    # Its parameters are not those of the class.
    del bring.__wrapped__
    return bring
