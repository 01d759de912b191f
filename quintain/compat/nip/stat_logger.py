"""Names of nip.stat_logger."""

from quintain.experiments.experiment_settings import (
    DummyStatLogger,
    StatLogger,
    WandbStatLogger,
)

__all__ = [
    "DummyStatLogger",
    "StatLogger",
    "WandbStatLogger",
]
