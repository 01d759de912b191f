"""Interaction protocols: turns, channels, decisions, rewards and ends, for tensors and for text."""

from __future__ import annotations

from quintain.core.lazy import lazy_names

_BASE = "quintain.experiments.protocols.base"
_HANDLERS = "quintain.experiments.protocols.handlers"

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ACCEPT": _BASE,
        "AdpProtocol": _HANDLERS,
        "CONTINUE": _BASE,
        "DebateProtocol": _HANDLERS,
        "DeterministicSingleVerifierProtocolHandler": _BASE,
        "MerlinArthurProtocol": _HANDLERS,
        "MnipProtocol": _HANDLERS,
        "MultiChannelTestProtocol": _HANDLERS,
        "NipProtocol": _HANDLERS,
        "Outcome": _BASE,
        "ProtocolHandler": _BASE,
        "REJECT": _BASE,
        "SingleVerifierProtocolHandler": _BASE,
        "SoloVerifierProtocol": _HANDLERS,
        "build_protocol_handler": "quintain.experiments.registry",
        "register_protocol_handler": "quintain.experiments.registry",
    },
)
