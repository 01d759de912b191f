"""Reward signals: the objectives of algorithms."""

from __future__ import annotations

from quintain.core.lazy import lazy_names, registrar

register = registrar("reward_signal")
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Extrinsic": "quintain.rewards.extrinsic",
        "RewardSignal": "quintain.rewards.base",
        "RewardSignalSettings": "quintain.rewards.settings",
        "Transitions": "quintain.data.flat_transitions",
        "flat_size": "quintain.data.flat_transitions",
        "transitions": "quintain.data.flat_transitions",
    },
)
__all__ += ["register"]
__all__.sort()
