"""Names of minestudio.online.trainer."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "BaseTrainer": "quintain.online.base_trainer",
        "PPOBCTrainer": "quintain.online.ppo_trainer",
        "PPOTrainer": "quintain.online.ppo_trainer",
    },
)
