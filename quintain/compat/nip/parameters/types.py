"""Names of nip.parameters.types."""

from quintain.experiments.agents_parameters import (
    ActivationType,
)
from quintain.experiments.names import (
    InteractionProtocolType,
    ScenarioType,
    TrainerType,
)
from quintain.experiments.trainer_parameters import (
    GuessType,
    IhvpVariantType,
    PpoLossType,
    SpgVariantType,
    TestSchemeType,
)

__all__ = [
    "ActivationType",
    "GuessType",
    "IhvpVariantType",
    "InteractionProtocolType",
    "PpoLossType",
    "ScenarioType",
    "SpgVariantType",
    "TestSchemeType",
    "TrainerType",
]
