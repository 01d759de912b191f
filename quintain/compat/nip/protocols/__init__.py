"""Names of nip.protocols."""

from quintain.experiments.protocols.base import (
    DeterministicSingleVerifierProtocolHandler,
    ProtocolHandler,
    SingleVerifierProtocolHandler,
)
from quintain.experiments.registry import (
    build_protocol_handler,
    register_protocol_handler,
)

__all__ = [
    "DeterministicSingleVerifierProtocolHandler",
    "ProtocolHandler",
    "SingleVerifierProtocolHandler",
    "build_protocol_handler",
    "register_protocol_handler",
]
