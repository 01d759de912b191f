"""Names of minestudio.models.base_policy."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "MinePolicy": "quintain.policies.mine_policy",
    },
)
