"""Environments as lanes that step together."""

from __future__ import annotations

from quintain.lazy import lazy_names, registrar

register = registrar("env")
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Env": "quintain.envs.base",
        "EnvPoolSettings": "quintain.envs.settings",
        "EnvSettings": "quintain.envs.settings",
        "GymSettings": "quintain.envs.settings",
        "StepResult": "quintain.envs.base",
    },
)
__all__ += ["register"]
