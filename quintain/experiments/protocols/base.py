"""Interaction protocols: whose turn it is, who hears whom, what a decision is worth, and when a conversation ends.

A handler works on single conversations with plain Python values, so trainers of text call it as it is. Environments of
tensors take its tables (`turn_table`, `outcome_table`), made by the same methods: there is one place for rewards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quintain.errors import SettingsError

if TYPE_CHECKING:
    from quintain.experiments.experiment_settings import ExperimentSettings
    from quintain.experiments.hyper_parameters import HyperParameters

REJECT, ACCEPT, CONTINUE = 0, 1, 2
"""Decisions of a verifier."""
DECISIONS = (REJECT, ACCEPT, CONTINUE)
LABELS = (0, 1)


@dataclass(frozen=True)
class Outcome:
    """The result of one round of one conversation."""

    decision: int
    """The decision that counts, after `force_guess`: reject, accept, or continue."""
    is_decided: bool
    """The conversation ends by a decision."""
    is_terminated: bool
    """The conversation ends, by a decision or by the round limit."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The reward of every agent in this round."""


class ProtocolHandler(ABC):
    """The base of all protocols. A subclass says who takes part, who is active in a round, and provers' rewards."""

    agent_names: Sequence[str]
    message_channel_names: Sequence[str] = ("main",)

    def __init__(self, hyper_params: HyperParameters, settings: ExperimentSettings | None = None) -> None:
        self.hyper_params = hyper_params
        self.settings = settings
        self.common = hyper_params.get("protocol_common")
        if self.common.zero_knowledge:
            raise SettingsError(
                "protocol_common.zero_knowledge: zero-knowledge protocols are not built yet; set it to false",
                code="E0205",
            )
        self._check_channels()

    @property
    @abstractmethod
    def max_message_rounds(self) -> int:
        """The number of rounds after which a conversation ends without a decision."""

    @property
    def min_message_rounds(self) -> int:
        """The first round in which a decision counts is this one minus 1."""
        return 1

    @property
    def verifier_names(self) -> list[str]:
        """The agents that may decide: those whose names contain "verifier"."""
        return [name for name in self.agent_names if "verifier" in name]

    @property
    def prover_names(self) -> list[str]:
        """The agents that are no verifiers."""
        return [name for name in self.agent_names if "verifier" not in name]

    @property
    def max_verifier_questions(self) -> int:
        """The number of turns of a verifier before its last one."""
        turns = [self.is_active(self.verifier_names[0], number, 0) for number in range(self.max_message_rounds)]
        return max(0, sum(turns) - 1)

    @property
    def agent_channel_visibility(self) -> Sequence[tuple[str, str]]:
        """The pairs of an agent and a channel that it hears; by default all of them."""
        return [(agent, channel) for agent in self.agent_names for channel in self.message_channel_names]

    @property
    def agent_channel_visibility_mask(self) -> list[list[bool]]:
        """Whether each agent (row) hears each channel (column)."""
        seen = set(self.agent_channel_visibility)
        return [[(agent, channel) in seen for channel in self.message_channel_names] for agent in self.agent_names]

    @property
    def stackelberg_sequence(self) -> list[tuple[str, ...]]:
        """Leaders first: verifiers, then all other agents."""
        return [tuple(self.verifier_names), tuple(self.prover_names)]

    @abstractmethod
    def active_channels(self, agent_name: str, round_number: int, seed: int) -> list[str]:
        """Returns the channels in which an agent speaks in a round; none where it is not its turn."""

    def is_active(self, agent_name: str, round_number: int, seed: int) -> bool:
        """Whether an agent acts in a round."""
        return bool(self.active_channels(agent_name, round_number, seed))

    def get_active_agents_mask_from_rounds_and_seed(
        self, rounds: Sequence[int], seeds: Sequence[int]
    ) -> list[list[list[bool]]]:
        """Returns [conversation][agent][channel]: whether the agent speaks there."""
        pairs = zip(rounds, seeds, strict=True)
        return [[self._channel_row(agent, number, seed) for agent in self.agent_names] for number, seed in pairs]

    def get_verifier_guess_mask_from_rounds_and_seed(self, rounds: Sequence[int], seeds: Sequence[int]) -> list[bool]:
        """Returns for each conversation whether a decision counts in its round."""
        return [self.can_decide(number, seed) for number, seed in zip(rounds, seeds, strict=True)]

    def agent_first_active_round(self, agent_name: str, seed: int = 0) -> int:
        """Returns the first round in which an agent acts."""
        for number in range(self.max_message_rounds):
            if self.is_active(agent_name, number, seed):
                return number
        raise SettingsError(f'protocol: agent "{agent_name}" is active in no round', code="E0205")

    def can_decide(self, round_number: int, seed: int) -> bool:
        """Whether a decision counts: on a verifier's turn, from round min_message_rounds - 1 on."""
        is_late = round_number >= self.min_message_rounds - 1
        return is_late and any(self.is_active(name, round_number, seed) for name in self.verifier_names)

    def forced(self, decision: int, label: int) -> int:
        """Returns the decision that counts: `force_guess` replaces a guess by a fixed one or by the label."""
        if decision == CONTINUE or self.common.force_guess is None:
            return decision
        return {"zero": REJECT, "one": ACCEPT, "y": label}[self.common.force_guess]

    @abstractmethod
    def prover_rewards(self, decision: int, label: int, stance: int) -> dict[str, float]:
        """Returns the rewards of provers for a decision to reject or accept, before `shared_reward`."""

    def rewards(self, decision: int, label: int, *, stance: int = ACCEPT) -> dict[str, float]:
        """Returns every agent's reward in the round in which a conversation ends; `CONTINUE` is the round limit."""
        common = self.common
        verifier = common.verifier_terminated_penalty
        provers = dict.fromkeys(self.prover_names, 0.0)
        if decision != CONTINUE:
            verifier = common.verifier_reward if decision == label else common.verifier_incorrect_penalty
            provers |= self.prover_rewards(decision, label, stance)
        if common.shared_reward:
            provers = dict.fromkeys(self.prover_names, verifier)
        return {name: provers.get(name, verifier) for name in self.agent_names}

    def step(self, round_number: int, decision: int, label: int, *, seed: int = 0, stance: int = ACCEPT) -> Outcome:
        """Returns the outcome of one round. A decision that does not count is taken as `CONTINUE`."""
        if decision not in DECISIONS or label not in LABELS:
            raise SettingsError(
                f"protocol: found decision {decision} and label {label}; expected a decision of 0 (reject), 1 (accept) "
                "or 2 (continue), and a label of 0 or 1",
                code="E0205",
            )
        counted = self.forced(decision, label) if self.can_decide(round_number, seed) else CONTINUE
        is_decided = counted != CONTINUE
        is_terminated = is_decided or round_number >= self.max_message_rounds - 1
        if is_terminated:
            return Outcome(counted, is_decided, True, self.rewards(counted, label, stance=stance))
        acting = {name for name in self.verifier_names if self.is_active(name, round_number, seed)}
        verifier = self.common.verifier_no_guess_reward if acting else 0.0
        provers = verifier if self.common.shared_reward else 0.0
        rewards = {
            name: (verifier if name in acting else 0.0) if name in self.verifier_names else provers
            for name in self.agent_names
        }
        return Outcome(CONTINUE, False, False, rewards)

    step_interaction_protocol = step

    def turn_table(self) -> list[list[list[list[bool]]]]:
        """Returns [round][seed modulo 2][agent][channel]: whether the agent speaks there."""
        return [
            [[self._channel_row(agent, number, parity) for agent in self.agent_names] for parity in (0, 1)]
            for number in range(self.max_message_rounds)
        ]

    def outcome_table(self) -> list[list[list[list[Outcome]]]]:
        """Returns [round][seed modulo 2][decision][label]: the outcome."""
        return [
            [
                [[self.step(number, decision, label, seed=parity) for label in LABELS] for decision in DECISIONS]
                for parity in (0, 1)
            ]
            for number in range(self.max_message_rounds)
        ]

    @property
    def reward_mid_point_estimate(self) -> dict[str, float]:
        """The reward of each agent half-way between its best and its worst end by a decision."""
        common = self.common
        verifier = (common.verifier_reward + common.verifier_incorrect_penalty) / 2
        prover = verifier if common.shared_reward else common.prover_reward / 2
        return {name: verifier if name in self.verifier_names else prover for name in self.agent_names}

    def _channel_row(self, agent_name: str, round_number: int, seed: int) -> list[bool]:
        speaks = self.active_channels(agent_name, round_number, seed)
        return [channel in speaks for channel in self.message_channel_names]

    def _check_channels(self) -> None:
        """Refuses agents that speak in a channel that they do not hear."""
        visible = set(self.agent_channel_visibility)
        for number in range(self.max_message_rounds):
            for agent in self.agent_names:
                for seed in (0, 1):
                    for channel in self.active_channels(agent, number, seed):
                        if (agent, channel) not in visible:
                            raise SettingsError(
                                f'{type(self).__name__}: "{agent}" speaks in round {number} in channel "{channel}", '
                                "which it does not hear; add the pair to agent_channel_visibility",
                                code="E0205",
                            )


class SingleVerifierProtocolHandler(ProtocolHandler):
    """A protocol with one verifier. Provers are paid `prover_reward` where the verifier accepts."""

    def prover_rewards(self, decision: int, label: int, stance: int) -> dict[str, float]:
        """Pays all provers for acceptance, or for their stance with `randomize_prover_stance`."""
        wanted = stance if self.common.randomize_prover_stance else ACCEPT
        return dict.fromkeys(self.prover_names, self.common.prover_reward if decision == wanted else 0.0)


class DeterministicSingleVerifierProtocolHandler(SingleVerifierProtocolHandler):
    """A protocol with one verifier whose turns depend on the round alone. A subclass needs only `is_agent_active`."""

    @abstractmethod
    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:  # nip's name
        """Whether an agent speaks in a channel in a round."""

    def can_agent_be_active(self, agent_name: str, round: int, channel_name: str) -> bool:  # nip's name
        """Whether an agent may speak in a channel in a round for some seed."""
        return self.is_agent_active(agent_name, round, channel_name)

    def active_channels(self, agent_name: str, round_number: int, seed: int) -> list[str]:
        """Returns the channels in which `is_agent_active` lets the agent speak."""
        channels = self.message_channel_names
        return [channel for channel in channels if self.is_agent_active(agent_name, round_number, channel)]
