"""Names of nip.trainers.trainer_base."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "CheckPointNotFoundError": "quintain.experiments.trainer",
        "IterationContext": "quintain.experiments.trainer",
        "TensorDictTrainer": "quintain.experiments.trainer",
        "Trainer": "quintain.experiments.trainer",
        "attach_progress_bar": "quintain.experiments.trainer",
    },
)
