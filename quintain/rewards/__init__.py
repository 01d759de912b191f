"""What an algorithm should maximise."""

from __future__ import annotations

from quintain.core.lazy import lazy_names, registrar

register = registrar("reward_signal")
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Extrinsic": "quintain.rewards.extrinsic",
        "RewardSignal": "quintain.rewards.base",
        "RewardSignalSettings": "quintain.rewards.settings",
    },
)
__all__ += ["register"]
