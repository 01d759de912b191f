"""Names of nip.run."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "PreparedExperimentInfo": "quintain.experiments.run",
        "prepare_experiment": "quintain.experiments.run",
        "run_experiment": "quintain.experiments.run",
    },
)
