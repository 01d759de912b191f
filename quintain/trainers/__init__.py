"""The training loop, and its events (callbacks)."""

from __future__ import annotations

from quintain.core.lazy import lazy_names, registrar

register = registrar("trainer")
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "HostedLoop": "quintain.trainers.hosted",
        "HostedSettings": "quintain.trainers.settings",
        "Loop": "quintain.trainers.loop",
        "LoopSettings": "quintain.trainers.settings",
        "Parts": "quintain.trainers.base",
        "Trainer": "quintain.runs.slots",
        "TrainerSettings": "quintain.trainers.settings",
    },
)
__all__ += ["register"]
