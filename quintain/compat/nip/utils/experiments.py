"""Names of nip's sweeps."""

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ExperimentFunctionArguments": "quintain.experiments.sweeps",
        "MultiprocessHyperparameterExperiment": "quintain.experiments.sweeps",
        "SequentialHyperparameterExperiment": "quintain.experiments.sweeps",
    },
)
