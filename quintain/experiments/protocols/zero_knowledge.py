"""Zero-knowledge protocols: a protocol of one verifier, with an adversarial verifier and a simulator beside it.

Provers talk to both verifiers, in separate channels. The simulator talks to itself, in channels of its own, and is
rewarded where its logits resemble those of the adversarial verifier: if it can do that without provers, then what they
say reveals nothing. The reward signal `zero_knowledge` computes this resemblance, because environments see no logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from quintain.errors import SettingsError
from quintain.experiments.protocols.base import ACCEPT, CONTINUE, REJECT, Outcome, ProtocolHandler

if TYPE_CHECKING:
    from quintain.experiments.experiment_settings import ExperimentSettings
    from quintain.experiments.parameters_base import BaseHyperParameters

KINDS = ("standard", "adversarial", "simulator")
"""Kinds of channels, in the order of their names."""
PHASES = ((CONTINUE, False), (CONTINUE, True), (REJECT, False), (ACCEPT, False))
"""The verifier's decision so far, and whether the adversarial verifier has decided; a conversation ends with both."""


class ZeroKnowledgeProtocol(ProtocolHandler):
    """A base protocol with `adversarial_verifier` and `simulator`, and three channels in place of each.

    Both act on the verifier's turns. A verifier that has decided, and the provers in its channels, speak no more.
    """

    num_phases: ClassVar[int] = len(PHASES)

    def __init__(
        self, hyper_params: BaseHyperParameters, settings: ExperimentSettings | None, base_class: type[ProtocolHandler]
    ) -> None:
        self.base_protocol = base = base_class(hyper_params, settings)
        if not base.can_be_zero_knowledge or base.verifier_names != ["verifier"] or base.num_phases > 1:
            raise SettingsError(
                f"protocol_common.zero_knowledge: {base_class.__name__} has the verifiers "
                f'{", ".join(base.verifier_names)}; expected one called "verifier" and can_be_zero_knowledge',
                code="E0205",
            )
        super().__init__(hyper_params, settings)

    @property
    def agent_names(self) -> Sequence[str]:  # type: ignore[override]  # a class may have a property in place of a list
        return [*self.base_protocol.agent_names, "adversarial_verifier", "simulator"]

    @property
    def message_channel_names(self) -> Sequence[str]:  # type: ignore[override]  # as above
        return [f"{channel}_{kind}" for kind in KINDS for channel in self.base_protocol.message_channel_names]

    @property
    def max_message_rounds(self) -> int:
        return self.base_protocol.max_message_rounds

    @property
    def min_message_rounds(self) -> int:
        return self.base_protocol.min_message_rounds

    @property
    def prover_names(self) -> list[str]:
        return self.base_protocol.prover_names

    @property
    def stackelberg_sequence(self) -> list[tuple[str, ...]]:
        return [tuple(self.verifier_names), (*self.prover_names, "simulator")]

    @property
    def deciding_names(self) -> list[str]:
        return [*self.verifier_names, "simulator"]

    @property
    def agent_channel_visibility(self) -> Sequence[tuple[str, str]]:
        return [
            (name, f"{channel}_{kind}")
            for agent, channel in self.base_protocol.agent_channel_visibility
            for kind in KINDS
            for name in self._agents_of(kind, agent)
        ]

    @property
    def similarity_weights(self) -> list[float]:
        """The factor of every agent on the similarity of the adversarial verifier and the simulator."""
        zk = self.hyper_params.get("zk_protocol")
        factor = float(zk.simulator_reward_coefficient)
        weights = dict.fromkeys(self.prover_names, factor * zk.aux_prover_reward_coefficient)
        weights |= {"simulator": factor, "adversarial_verifier": -factor}
        return [weights.get(name, 0.0) for name in self.agent_names]

    def _agents_of(self, kind: str, agent: str) -> list[str]:
        """Returns the agents that do in channels of a kind as an agent of the base protocol does."""
        if agent == "verifier":
            return [{"standard": "verifier", "adversarial": "adversarial_verifier", "simulator": "simulator"}[kind]]
        return [] if kind == "simulator" else [agent]

    def active_channels(self, agent_name: str, round_number: int, seed: int) -> list[str]:
        return self.channels_in_phase(agent_name, round_number, seed, 0)

    def channels_in_phase(self, agent_name: str, round_number: int, seed: int, phase: int) -> list[str]:
        verdict, has_adversary_decided = PHASES[phase]
        is_over = {"standard": verdict != CONTINUE, "adversarial": has_adversary_decided}
        is_over["simulator"] = has_adversary_decided
        return [
            f"{channel}_{kind}"
            for kind in KINDS
            for agent in self.base_protocol.agent_names
            if not is_over[kind] and agent_name in self._agents_of(kind, agent)
            for channel in self.base_protocol.active_channels(agent, round_number, seed)
        ]

    def prover_rewards(self, decision: int, label: int, stance: int) -> dict[str, float]:
        return self.base_protocol.prover_rewards(decision, label, stance)

    def step(self, round_number: int, decision: int, label: int, *, seed: int = 0, stance: int = ACCEPT) -> Outcome:
        """Returns the outcome of a first round in which both verifiers decide alike."""
        return self.step_all(round_number, (decision, decision), label, seed=seed)

    def step_all(
        self, round_number: int, decisions: Sequence[int], label: int, *, seed: int = 0, phase: int = 0
    ) -> Outcome:
        """Returns the outcome of one round, without the rewards for similarity."""
        verdict, has_adversary_decided = PHASES[phase]
        rewards = dict.fromkeys(self.agent_names, 0.0)
        if verdict == CONTINUE:
            found = self.base_protocol.step(round_number, decisions[0], label, seed=seed)
            verdict = found.decision
            rewards |= found.rewards
        has_adversary_decided |= decisions[1] != CONTINUE and self.can_decide(round_number, seed)
        is_decided = verdict != CONTINUE and has_adversary_decided
        is_terminated = is_decided or round_number >= self.max_message_rounds - 1
        next_phase = 0 if is_terminated else PHASES.index((verdict, has_adversary_decided))
        return Outcome(verdict, is_decided, is_terminated, rewards, next_phase)

    def reward_mid_point_estimate(self, agent_name: str) -> float:
        is_own = agent_name in self.base_protocol.agent_names
        return self.base_protocol.reward_mid_point_estimate(agent_name) if is_own else 0.0
