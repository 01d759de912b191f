"""Names of minestudio.online.rollout.start_manager."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "start_rolloutmanager": "quintain.online.rollout_manager",
    },
)
