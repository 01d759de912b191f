"""Names of minestudio.online.utils.train.gae."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "GAEWorker": "quintain.online.gae_worker",
    },
)
