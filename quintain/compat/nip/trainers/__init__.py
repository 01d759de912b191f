"""Names of nip.trainers."""

from quintain.experiments.registry import (
    register_trainer,
)

__all__ = [
    "register_trainer",
]
