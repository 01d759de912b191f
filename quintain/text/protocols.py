"""The protocol of conversations from the settings of a text trainer; the rules are those of all experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.registry import build_protocol_handler

if TYPE_CHECKING:
    from quintain.experiments.protocols.base import ProtocolHandler
    from quintain.text.settings import ProtocolSettings, TextTrainerSettings

VERIFIER = "verifier"
_ROUNDS = ("max_message_rounds", "min_message_rounds")
_ORDER = ("sequential", "prover0_first", "randomize_channel_order")


def protocol_of(settings: TextTrainerSettings) -> ProtocolHandler:
    """Makes the protocol of an experiment's hyper-parameters, or of the block `protocol` where there are none."""
    if settings.hyper_params:
        return build_protocol_handler(HyperParameters.from_dict(settings.hyper_params))
    return make_protocol(settings.protocol)


def make_protocol(settings: ProtocolSettings) -> ProtocolHandler:
    """Makes the handler that the settings describe."""
    values = dict(settings)
    name = values.pop("name")
    blocks = {}
    if name in ("nip", "debate", "mnip"):
        fields = _ROUNDS if name == "nip" else (*_ROUNDS, *_ORDER)
        blocks[f"{name}_protocol"] = {field: values[field] for field in fields}
    common = {field: value for field, value in values.items() if field not in (*_ROUNDS, *_ORDER)}
    parameters = HyperParameters(
        "code_validation",
        "pure_text_ei",
        "local",
        interaction_protocol=name,
        protocol_common=common,
        **blocks,  # type: ignore[arg-type]  # one of the blocks, by its name
    )
    return build_protocol_handler(parameters)


def speakers(protocol: ProtocolHandler, round_number: int, seed: int) -> list[str]:
    """Returns the agents that speak in a round."""
    return [name for name in protocol.agent_names if protocol.is_active(name, round_number, seed)]


def must_decide(protocol: ProtocolHandler, round_number: int, seed: int) -> bool:
    """Whether this is the verifier's last turn."""
    later = range(round_number + 1, protocol.max_message_rounds)
    is_turn = protocol.is_active(VERIFIER, round_number, seed)
    return is_turn and not any(protocol.is_active(VERIFIER, each, seed) for each in later)
