"""Names of nip.trainers.vanilla_ppo."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "VanillaPpoTrainer": "quintain.experiments.tensordict_rl",
    },
)
