"""Wrappers around single environments, by the names of Gymnasium's or by module:Name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

import gymnasium

from quintain.core import registry
from quintain.envs.settings import GymSettings, WrapperSettings
from quintain.errors import EnvError, QuintainError, SettingsError
from quintain.services.user_code import ANYTHING, in_one_line

if TYPE_CHECKING:
    from quintain.core.registry import Maker
    from quintain.envs.gym.protocols import GymEnv

_OWN = "gymnasium.wrappers."
_INSTEAD = {
    "NormalizeObservation": "set normalize_obs=true, whose statistics all lanes share and a resume restores",
    "NormalizeReward": "set normalize_reward=true, whose statistics all lanes share and a resume restores",
    "Autoreset": "leave it out: each lane is reset where its episode ends",
    "RecordVideo": "leave it out: quintain eval RUN --video records an episode",
    "HumanRendering": "leave it out: quintain eval RUN --video records an episode",
    "vector": "its wrappers are for vector environments; name one for single environments",
}
"""Wrappers of Gymnasium that would change results silently or have no effect, and what to do in their place."""


def wrapped(settings: GymSettings, env: GymEnv) -> GymEnv:
    """Returns an environment in the wrappers of its settings."""
    return _in_layers(settings.id, env, settings.layers)


def _in_layers(name: str, env: GymEnv, layers: Iterable[WrapperSettings]) -> GymEnv:
    for layer in layers:
        make = _wrapper(layer.type)
        try:
            env = make(env, **layer.kwargs)
        except QuintainError:
            raise
        except ANYTHING as error:
            raise EnvError(
                f"env {name!r} cannot be put into the wrapper {layer.type}: {in_one_line(error)}", code="E0505"
            ) from error
    return env


def _wrapper(name: str) -> Maker:
    """Finds a wrapper; refuses those whose state a resume could not restore."""
    short = name.removeprefix(_OWN)
    if ":" in name:
        return registry.import_part("wrapper", name)
    if short in _INSTEAD:
        raise SettingsError(f"experiment.env.wrappers: {short} is not taken; {_INSTEAD[short]}", code="E0204")
    found: Maker | None = getattr(gymnasium.wrappers, short, None)
    if found is None and name in registry.names("wrapper"):
        return registry.get("wrapper", name).load()
    if found is None or not isinstance(found, type):
        near = get_close_matches(short, gymnasium.wrappers.__all__, n=1)
        hint = f'did you mean "{near[0]}"?' if near else "Gymnasium has none of this name."
        raise SettingsError(
            f'experiment.env.wrappers: unknown wrapper "{name}"; {hint} Your own is module:Name; one of a script is '
            f"passed again, as in Trainer.load(run, wrappers=[...])",
            code="E0204",
        )
    return found
