"""Vectorized environments: lanes that step together."""

from __future__ import annotations

from quintain.core.lazy import lazy_names, registrar

register = registrar("env")
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "EmbodiedEnv": "quintain.envs.embodied",
        "Env": "quintain.envs.base",
        "EnvEventManager": "quintain.envs.events",
        "EnvPoolSettings": "quintain.envs.settings",
        "EnvSettings": "quintain.envs.settings",
        "GymSettings": "quintain.envs.settings",
        "EventCfg": "quintain.envs.events",
        "StepResult": "quintain.envs.base",
        "TaskState": "quintain.envs.embodied",
    },
)
__all__ += ["register"]
