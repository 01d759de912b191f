"""Names of minestudio.online.trainer.ppobctrainer."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "PPOBCTrainer": "quintain.online.ppo_trainer",
    },
)
