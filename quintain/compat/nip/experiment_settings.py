"""Names of nip.experiment_settings."""

from quintain.experiments.experiment_settings import (
    ExperimentSettings,
)

__all__ = [
    "ExperimentSettings",
]
