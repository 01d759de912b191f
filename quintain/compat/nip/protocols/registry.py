"""Names of nip.protocols.registry."""

from quintain.experiments.registry import (
    build_protocol_handler,
    register_protocol_handler,
)

__all__ = [
    "build_protocol_handler",
    "register_protocol_handler",
]
