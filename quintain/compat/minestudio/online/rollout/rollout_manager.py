"""Names of minestudio.online.rollout.rollout_manager."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "RolloutManager": "quintain.online.rollout_manager",
    },
)
