"""Names of nip.trainers.registry."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "TRAINER_REGISTRY": "quintain.experiments.registry",
        "build_trainer": "quintain.experiments.factory",
        "get_trainer_class": "quintain.experiments.registry",
        "register_trainer": "quintain.experiments.registry",
    },
)
