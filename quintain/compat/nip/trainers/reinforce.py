"""Names of nip.trainers.reinforce."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ReinforceTrainer": "quintain.experiments.tensordict_rl",
    },
)
