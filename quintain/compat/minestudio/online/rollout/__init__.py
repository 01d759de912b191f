"""Names of minestudio.online.rollout."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "RolloutManager": "quintain.online.rollout_manager",
        "get_rollout_manager": "quintain.online.rollout_manager",
        "start_rolloutmanager": "quintain.online.rollout_manager",
    },
)
