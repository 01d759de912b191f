"""Names of minestudio.online.trainer.ppotrainer."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "PPOTrainer": "quintain.online.ppo_trainer",
    },
)
