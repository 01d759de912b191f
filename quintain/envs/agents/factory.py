"""Makes the copies of an environment of agents from settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.envs.agents.env import AgentEnv, BaseEnv
from quintain.envs.agents.pettingzoo import adapted
from quintain.envs.agents.samplers import sampler_of
from quintain.envs.settings import AgentsSettings
from quintain.errors import EnvError
from quintain.services.user_code import named_failure

if TYPE_CHECKING:
    from quintain.typing import Keywords

_NEEDED = ("reset", "step", "close", "behavior_specs", "get_steps", "set_actions")


def agent_env(settings: AgentsSettings, rng: Rng, *, num_copies: int | None = None, first_copy: int = 0) -> AgentEnv:
    """Makes the environment; every copy gets its own seed and worker id, if its factory takes them.

    A rank has `num_copies`; the first has the given number among the copies of all ranks.
    """
    make = registry.import_part("env", settings.id)
    copies = []
    for number in range(first_copy, first_copy + (settings.num_lanes if num_copies is None else num_copies)):
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
    samplers = rng.child("samplers")
    samplers = samplers.child(f"copies_from_{first_copy}") if first_copy else samplers
    env = AgentEnv(copies, samplers, on_nonfinite=settings.on_nonfinite)
    if settings.parameters or settings.samplers:
        env.set_parameters(settings.parameters, {name: sampler_of(each) for name, each in settings.samplers.items()})
        env.reset()
    return env


def _accepted(make: Callable[..., BaseEnv], given: Keywords) -> Keywords:
    """Returns the arguments that the signature of a class or function accepts."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in given.items() if name in parameters}
