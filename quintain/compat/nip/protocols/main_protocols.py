"""Names of nip.protocols.main_protocols."""

from quintain.experiments.protocols.handlers import (
    AdpProtocol,
    DebateProtocol,
    MerlinArthurProtocol,
    MnipProtocol,
    MultiChannelTestProtocol,
    NipProtocol,
    SoloVerifierProtocol,
)

__all__ = [
    "AdpProtocol",
    "DebateProtocol",
    "MerlinArthurProtocol",
    "MnipProtocol",
    "MultiChannelTestProtocol",
    "NipProtocol",
    "SoloVerifierProtocol",
]
