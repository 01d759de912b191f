"""Names of nip.protocols.zero_knowledge."""

from quintain.experiments.protocols.zero_knowledge import (
    ZeroKnowledgeProtocol,
)

__all__ = [
    "ZeroKnowledgeProtocol",
]
