"""Names of minestudio.online.utils.rollout.datatypes."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "FragmentDataDict": "quintain.online.fragments",
        "FragmentIndex": "quintain.online.fragments",
        "SampleFragment": "quintain.online.fragments",
    },
)
