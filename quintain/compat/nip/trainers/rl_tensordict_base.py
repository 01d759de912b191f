"""Names of nip.trainers.rl_tensordict_base."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "TensorDictRlTrainer": "quintain.experiments.tensordict_rl",
    },
)
