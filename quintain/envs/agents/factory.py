"""Makes the copies of an environment of agents that settings name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from quintain import registry
from quintain.envs.agents.env import AgentEnv
from quintain.envs.agents.pettingzoo import adapted
from quintain.envs.agents.samplers import sampler_of
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
    for number, copy in enumerate(copies):
        missing = [name for name in _NEEDED if not hasattr(copy, name)]
        if missing:
            raise EnvError(
                f"{settings.id} made a {type(copy).__name__} without {', '.join(missing)}; expected something like "
                f"ML-Agents' BaseEnv, or an environment of PettingZoo",
                code="E0506",
            )
        _set_parameters(copy, settings, rng.generator("samplers", number))
    return AgentEnv(copies)


def _set_parameters(copy: Any, settings: AgentsSettings, rng: np.random.Generator) -> None:
    """Gives a copy the numbers of its task, by our name for it or by that of ML-Agents' side channel."""
    values = dict(settings.parameters)
    samplers = {name: sampler_of(each) for name, each in settings.samplers.items()}
    with named_failure(f"{settings.id} refused its parameters", EnvError, "E0521"):
        if samplers and hasattr(copy, "set_samplers"):
            copy.set_samplers(samplers)
        else:
            values |= {name: float(sampler.draw(rng, 1)[0]) for name, sampler in samplers.items()}
        if not values:
            return
        if hasattr(copy, "set_parameters"):
            copy.set_parameters(values)
        elif hasattr(copy, "set_float_parameter"):
            for name, value in values.items():
                copy.set_float_parameter(name, value)
        else:
            raise EnvError(
                f"{settings.id} takes no parameters, and {', '.join(values)} was set; give it a method "
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
