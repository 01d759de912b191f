"""Names of nip.parameters.trainers."""

from quintain.experiments.trainer_parameters import (
    CommonPpoParameters,
    PureTextEiParameters,
    PureTextMaltParameters,
    ReinforceParameters,
    RlTrainerParameters,
    SoloAgentParameters,
    SpgParameters,
    TextRlParameters,
    VanillaPpoParameters,
)

__all__ = [
    "CommonPpoParameters",
    "PureTextEiParameters",
    "PureTextMaltParameters",
    "ReinforceParameters",
    "RlTrainerParameters",
    "SoloAgentParameters",
    "SpgParameters",
    "TextRlParameters",
    "VanillaPpoParameters",
]
