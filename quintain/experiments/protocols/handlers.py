"""The interaction protocols that ship, with nip's names."""

from __future__ import annotations

from collections.abc import Sequence

from quintain.experiments.protocols.base import (
    ACCEPT,
    REJECT,
    DeterministicSingleVerifierProtocolHandler,
    SingleVerifierProtocolHandler,
)
from quintain.experiments.registry import register_protocol_handler


@register_protocol_handler("nip")
class NipProtocol(DeterministicSingleVerifierProtocolHandler):
    """A prover and a verifier speak in turns; the verifier first by default."""

    agent_names = ("prover", "verifier")

    @property
    def max_message_rounds(self) -> int:
        return int(self.hyper_params.get("nip_protocol.max_message_rounds"))

    @property
    def min_message_rounds(self) -> int:
        return int(self.hyper_params.get("nip_protocol.min_message_rounds"))

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        is_verifiers_turn = (round % 2 == 0) == bool(self.common.verifier_first)
        return is_verifiers_turn == (agent_name == "verifier")


@register_protocol_handler("adp")
class AdpProtocol(DeterministicSingleVerifierProtocolHandler):
    """Abstract decision problem: the prover says one thing, then the verifier decides."""

    agent_names = ("prover", "verifier")
    max_message_rounds = 2
    min_message_rounds = 2

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        return agent_name == ("prover" if round == 0 else "verifier")


@register_protocol_handler("solo_verifier")
class SoloVerifierProtocol(DeterministicSingleVerifierProtocolHandler):
    """A verifier that decides alone, in round 0."""

    agent_names = ("verifier",)
    max_message_rounds = 2
    min_message_rounds = 1

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        return round == 0


class OpposedProvers(SingleVerifierProtocolHandler):
    """Provers with opposite aims: prover0 is paid where the verifier rejects, prover1 where it accepts."""

    agent_names = ("prover0", "prover1", "verifier")

    def prover_rewards(self, decision: int, label: int, stance: int) -> dict[str, float]:
        reward = self.common.prover_reward
        return {
            "prover0": reward if decision == REJECT else 0.0,
            "prover1": reward if decision == ACCEPT else 0.0,
        }


class TwoProverTurns(DeterministicSingleVerifierProtocolHandler):
    """Two provers with a channel each and a verifier in both: all provers at once, or one after the other."""

    agent_names = ("prover0", "prover1", "verifier")
    message_channel_names = ("prover0_channel", "prover1_channel")
    parameters: str
    """The block of hyper-parameters with the rounds and the order."""

    @property
    def max_message_rounds(self) -> int:
        return int(self.hyper_params.get(self.parameters).max_message_rounds)

    @property
    def min_message_rounds(self) -> int:
        return int(self.hyper_params.get(self.parameters).min_message_rounds)

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        options = self.hyper_params.get(self.parameters)
        turns: list[tuple[str, ...]] = [("prover0", "prover1")]
        if options.sequential:
            turns = [("prover0",), ("prover1",)] if options.prover0_first else [("prover1",), ("prover0",)]
        turns.insert(0 if self.common.verifier_first else len(turns), ("verifier",))
        is_in_channel = agent_name == "verifier" or channel_name == f"{agent_name}_channel"
        return is_in_channel and agent_name in turns[round % len(turns)]


@register_protocol_handler("debate")
class DebateProtocol(OpposedProvers, TwoProverTurns):
    """Two provers with opposite aims before a verifier; all agents hear all channels."""

    parameters = "debate_protocol"


@register_protocol_handler("mnip")
class MnipProtocol(TwoProverTurns):
    """Two provers, paid alike, that do not hear each other."""

    parameters = "mnip_protocol"

    @property
    def agent_channel_visibility(self) -> Sequence[tuple[str, str]]:
        both = [("verifier", channel) for channel in self.message_channel_names]
        return [("prover0", "prover0_channel"), ("prover1", "prover1_channel"), *both]


@register_protocol_handler("merlin_arthur")
class MerlinArthurProtocol(OpposedProvers):
    """One of two opposed provers, by the parity of the conversation's seed, speaks once; the verifier decides."""

    max_message_rounds = 2
    min_message_rounds = 2

    def active_channels(self, agent_name: str, round_number: int, seed: int) -> list[str]:
        speaker = f"prover{seed % 2}" if round_number == 0 else "verifier"
        return ["main"] if agent_name == speaker else []


@register_protocol_handler("multi_channel_test")
class MultiChannelTestProtocol(DeterministicSingleVerifierProtocolHandler):
    """Three provers, unpaid, and a verifier in three channels, in turns modulo 3: for tests of channel masks."""

    agent_names = ("prover0", "prover1", "prover2", "verifier")
    message_channel_names = ("channel0", "channel1", "channel2")
    max_message_rounds = 8
    min_message_rounds = 1
    SPEAKERS = ({"verifier": (0, 1, 2)}, {"prover0": (0,), "prover1": (1,)}, {"prover1": (0,), "prover2": (1, 2)})
    """Who speaks in which channels, by round modulo 3."""

    @property
    def agent_channel_visibility(self) -> Sequence[tuple[str, str]]:
        heard = {"prover0": (0,), "prover1": (0, 1), "prover2": (1, 2), "verifier": (0, 1, 2)}
        return [(agent, f"channel{number}") for agent, numbers in heard.items() for number in numbers]

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        channels = self.SPEAKERS[round % 3].get(agent_name, ())
        return channel_name in [f"channel{number}" for number in channels]

    def prover_rewards(self, decision: int, label: int, stance: int) -> dict[str, float]:
        return dict.fromkeys(self.prover_names, 0.0)
