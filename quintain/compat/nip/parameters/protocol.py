"""Names of nip.parameters.protocol."""

from quintain.experiments.trainer_parameters import (
    CommonProtocolParameters,
    DebateProtocolParameters,
    MnipProtocolParameters,
    NipProtocolParameters,
    ZkProtocolParameters,
)

__all__ = [
    "CommonProtocolParameters",
    "DebateProtocolParameters",
    "MnipProtocolParameters",
    "NipProtocolParameters",
    "ZkProtocolParameters",
]
