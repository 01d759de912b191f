"""Names of minestudio.online.utils.train.data."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "FragmentDataDict": "quintain.online.fragments",
        "data_iter": "quintain.online.fragments",
    },
)
