"""Names of minestudio.online.trainer.start_trainer."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "start_trainer": "quintain.online.start",
    },
)
