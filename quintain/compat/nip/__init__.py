"""Names of the package nip."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ExperimentSettings": "quintain.experiments.experiment_settings",
        "HyperParameters": "quintain.experiments.hyper_parameters",
        "PreparedExperimentInfo": "quintain.experiments.run",
        "prepare_experiment": "quintain.experiments.run",
        "run_experiment": "quintain.experiments.run",
    },
)
