"""Names of minestudio.online.trainer.basetrainer."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "BaseTrainer": "quintain.online.base_trainer",
    },
)
