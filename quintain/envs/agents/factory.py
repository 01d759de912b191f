"""Makes the copies of an environment of agents that settings name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from quintain import registry
from quintain.envs.agents.env import AgentEnv
from quintain.envs.agents.pettingzoo import adapted
from quintain.envs.settings import AgentsSettings
from quintain.errors import EnvError
from quintain.rng import Rng
from quintain.services.user_code import named_failure

_NEEDED = ("reset", "step", "close", "behavior_specs", "get_steps", "set_actions")


def agent_env(settings: AgentsSettings, rng: Rng) -> AgentEnv:
    """Makes the environment; every copy gets a seed and a number of its own, where it takes them."""
    make = registry.import_part("env", settings.id)
    copies = []
    for number in range(settings.num_lanes):
        given = {"seed": rng.seed_for("copy", number), "worker_id": number, "side_channels": []}
        with named_failure(f"{settings.id} cannot be made", EnvError, "E0505"):
            made = make(**{**_accepted(make, given), **settings.kwargs})
            copies.append(adapted(made, rng.seed_for("copy", number)))
    for copy in copies:
        missing = [name for name in _NEEDED if not hasattr(copy, name)]
        if missing:
            raise EnvError(
                f"{settings.id} made a {type(copy).__name__} without {', '.join(missing)}; expected something like "
                f"ML-Agents' BaseEnv, or an environment of PettingZoo",
                code="E0506",
            )
        _set_parameters(copy, settings)
    return AgentEnv(copies)


def _set_parameters(copy: Any, settings: AgentsSettings) -> None:
    """Gives a copy the numbers of its task, by our name for it or by that of ML-Agents' side channel."""
    if not settings.parameters:
        return
    with named_failure(f"{settings.id} refused its parameters", EnvError, "E0521"):
        if hasattr(copy, "set_parameters"):
            copy.set_parameters(dict(settings.parameters))
        elif hasattr(copy, "set_float_parameter"):
            for name, value in settings.parameters.items():
                copy.set_float_parameter(name, value)
        else:
            raise EnvError(
                f"{settings.id} takes no parameters, and {', '.join(settings.parameters)} was set; give it a method "
                f"set_parameters(values)",
                code="E0521",
            )


def _accepted(make: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Returns those arguments that a class or function names among its parameters."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in given.items() if name in parameters}
