"""Names of minestudio.online.utils.rollout."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "get_rollout_manager": "quintain.online.rollout_manager",
    },
)
