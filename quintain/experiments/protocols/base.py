"""Interaction protocols: whose turn it is, who hears whom, what a decision is worth, and when a conversation ends.

A handler works on single conversations with plain Python values, so trainers of text call it as it is. Environments of
tensors take its tables (`turn_table`, `outcome_table`), made by the same methods: there is one place for rewards. nip's
methods on batches of tensors are accepted in a subclass, and are called with batches of one conversation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from quintain.errors import SettingsError
from quintain.typing import Keyword

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase

    from quintain.experiments.experiment_settings import ExperimentSettings
    from quintain.experiments.parameters_base import BaseHyperParameters

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
    next_phase: int = 0
    """The phase of the conversation from the next round on."""


class ProtocolHandler(ABC):
    """The base of all protocols. A subclass says who takes part, who is active in a round, and provers' rewards.

    Turns are `active_channels`, or nip's `get_active_agents_mask_from_rounds_and_seed`; rewards are `prover_rewards`,
    or nip's `step_interaction_protocol`.
    """

    agent_names: Sequence[str]
    message_channel_names: Sequence[str] = ("main",)
    can_be_zero_knowledge: ClassVar[bool] = True
    """Whether `protocol_common.zero_knowledge` may extend it."""
    num_phases: ClassVar[int] = 1
    """Number of phases. Who speaks depends on the phase too where some agents may have finished before others."""

    def __init_subclass__(cls, **kwargs: Keyword) -> None:
        super().__init_subclass__(**kwargs)
        # nip's guide has this name for it.
        if "channel_names" in vars(cls):
            cls.message_channel_names = vars(cls).get("message_channel_names", vars(cls)["channel_names"])

    def __init__(self, hyper_params: BaseHyperParameters, settings: ExperimentSettings | None = None) -> None:
        self.hyper_params = hyper_params
        self.settings = settings
        self.common = hyper_params.get("protocol_common")
        for own, of_batches in (
            ("active_channels", "get_active_agents_mask_from_rounds_and_seed"),
            ("prover_rewards", "step_interaction_protocol"),
        ):
            if not self._defines(own) and not self._defines(of_batches):
                raise SettingsError(
                    f"{type(self).__name__} defines neither {own} nor {of_batches}; add one", code="E0205"
                )
        self._check_channels()

    def _defines(self, name: str) -> bool:
        """Whether a subclass has a method of its own in place of this class's."""
        return getattr(type(self), name) is not getattr(ProtocolHandler, name)

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

    @property
    def deciding_names(self) -> list[str]:
        """The agents that choose a decision on their turn; that of an agent which is no verifier has no effect."""
        return self.verifier_names

    def active_channels(self, agent_name: str, round_number: int, seed: int) -> list[str]:
        """Returns the channels in which an agent speaks in a round; none where it is not its turn."""
        import torch

        rounds, seeds = torch.tensor([round_number]), torch.tensor([seed])
        agent = list(self.agent_names).index(agent_name)
        row = self.get_active_agents_mask_from_rounds_and_seed(rounds, seeds)[0][agent]
        return [channel for channel, speaks in zip(self.message_channel_names, row, strict=True) if speaks]

    def channels_in_phase(self, agent_name: str, round_number: int, seed: int, phase: int) -> list[str]:
        """Returns the channels in which an agent speaks in a round of a phase."""
        return self.active_channels(agent_name, round_number, seed)

    def can_agent_be_active(self, agent_name: str, round: int, channel_name: str) -> bool:  # nip's name
        """Whether an agent speaks in a channel in a round for some seed."""
        return any(channel_name in self.active_channels(agent_name, round, parity) for parity in (0, 1))

    def is_active(self, agent_name: str, round_number: int, seed: int) -> bool:
        """Whether an agent acts in a round."""
        return bool(self.active_channels(agent_name, round_number, seed))

    def get_active_agents_mask_from_rounds_and_seed(
        self, rounds: Sequence[int] | torch.Tensor, seeds: Sequence[int] | torch.Tensor
    ) -> Sequence[Sequence[Sequence[bool]]] | torch.Tensor:
        """Returns [conversation][agent][channel]: whether the agent speaks there."""
        pairs = [(int(number), int(seed)) for number, seed in zip(rounds, seeds, strict=True)]
        return [[self._channel_row(agent, number, seed) for agent in self.agent_names] for number, seed in pairs]

    def get_verifier_guess_mask_from_rounds_and_seed(
        self, rounds: Sequence[int] | torch.Tensor, seeds: Sequence[int] | torch.Tensor
    ) -> Sequence[bool] | torch.Tensor:
        """Returns for each conversation whether it is a verifier's turn."""
        pairs = [(int(number), int(seed)) for number, seed in zip(rounds, seeds, strict=True)]
        return [any(self.is_active(name, number, seed) for name in self.verifier_names) for number, seed in pairs]

    def agent_first_active_round(self, agent_name: str, seed: int = 0) -> int:
        """Returns the first round in which an agent acts."""
        for number in range(self.max_message_rounds):
            if self.is_active(agent_name, number, seed):
                return number
        raise SettingsError(f'protocol: agent "{agent_name}" is active in no round', code="E0205")

    def can_decide(self, round_number: int, seed: int) -> bool:
        """Whether a decision counts: on a verifier's turn, from round min_message_rounds - 1 on."""
        if round_number < self.min_message_rounds - 1:
            return False
        if self._defines("get_verifier_guess_mask_from_rounds_and_seed"):
            import torch

            rounds, seeds = torch.tensor([round_number]), torch.tensor([seed])
            return bool(self.get_verifier_guess_mask_from_rounds_and_seed(rounds, seeds)[0])
        return any(self.is_active(name, round_number, seed) for name in self.verifier_names)

    def forced(self, decision: int, label: int) -> int:
        """Returns the decision that counts: `force_guess` replaces a guess by a fixed one or by the label."""
        if decision == CONTINUE or self.common.force_guess is None:
            return decision
        return {"zero": REJECT, "one": ACCEPT, "y": label}[self.common.force_guess]

    def prover_rewards(self, decision: int, label: int, stance: int) -> dict[str, float]:
        """Returns the rewards of provers for a decision to reject or accept, before `shared_reward`."""
        return {}

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
        if self._defines("step_interaction_protocol"):
            return self._outcome_of_batch(round_number, [decision] * len(self.verifier_names), label, seed)
        return self._outcome(round_number, decision, label, seed, stance)

    def step_all(
        self, round_number: int, decisions: Sequence[int], label: int, *, seed: int = 0, phase: int = 0
    ) -> Outcome:
        """Returns the outcome of one round in which each verifier decides; by default the first not to go on counts."""
        if self._defines("step_interaction_protocol"):
            return self._outcome_of_batch(round_number, decisions, label, seed)
        return self.step(round_number, min(decisions, default=CONTINUE), label, seed=seed)

    def step_interaction_protocol(
        self, env_td: TensorDictBase
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Steps a batch of conversations, as nip does: y, round, seed, ends, and the agents' decisions and ends.

        Returns ends by a decision [...], the same for each agent [..., A], ends by the round limit [...] and rewards
        [..., A].
        """
        import torch

        rounds = torch.as_tensor(env_td["round"])
        columns = (rounds, env_td["y"], env_td["seed"])
        verifiers = [list(self.agent_names).index(name) for name in self.verifier_names]
        decisions = torch.as_tensor(env_td["agents", "decision"]).flatten(0, -2)[:, verifiers].tolist()
        rows = zip(*(torch.as_tensor(each).flatten().tolist() for each in columns), decisions, strict=True)
        found = [self._outcome(k, min(d, default=CONTINUE), y, seed, ACCEPT) for k, y, seed, d in rows]
        is_decided = torch.tensor([each.is_decided for each in found]).view(rounds.shape)
        is_limit = torch.tensor([each.is_terminated and not each.is_decided for each in found]).view(rounds.shape)
        rewards = torch.tensor([[each.rewards[name] for name in self.agent_names] for each in found])
        done = env_td["done"].view(rounds.shape) | is_decided
        terminated = env_td["terminated"].view(rounds.shape) | is_limit
        return done, env_td["agents", "done"] | done[..., None], terminated, rewards.view(*rounds.shape, -1)

    def _outcome_of_batch(self, round_number: int, decisions: Sequence[int], label: int, seed: int) -> Outcome:
        """Returns the outcome of a subclass's `step_interaction_protocol`, of a batch of one conversation."""
        import torch
        from tensordict import TensorDict

        names, verifiers = list(self.agent_names), self.verifier_names
        chosen = torch.full((1, len(names)), CONTINUE)
        for name, decision in zip(verifiers, decisions, strict=True):
            chosen[0, names.index(name)] = decision
        none, each = torch.zeros(1, dtype=torch.bool), torch.zeros_like(chosen, dtype=torch.bool)
        numbers = {"round": torch.tensor([round_number]), "seed": torch.tensor([seed]), "y": torch.tensor([[label]])}
        agents = TensorDict({"decision": chosen, "done": each}, batch_size=chosen.shape)
        batch = TensorDict({**numbers, "done": none, "terminated": none, "agents": agents}, batch_size=[1])
        done, agent_done, terminated, rewards = self.step_interaction_protocol(batch)
        is_decided = bool(done[0])
        if bool(agent_done[0].any()) and not is_decided:
            raise SettingsError(
                f"{type(self).__name__}.step_interaction_protocol ends agents before the conversation, in round "
                f"{round_number}; end all of them together",
                code="E0205",
            )
        decision = self.forced(min(decisions, default=CONTINUE), label) if is_decided else CONTINUE
        paid = dict(zip(names, rewards[0].tolist(), strict=True))
        return Outcome(decision, is_decided, is_decided or bool(terminated[0]), paid)

    def _outcome(self, round_number: int, decision: int, label: int, seed: int, stance: int) -> Outcome:
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

    def turn_table(self) -> list[list[list[list[bool]]]]:
        """Returns [round][2 * phase + seed modulo 2][agent][channel]: whether the agent speaks there."""
        return [
            [
                [self._channel_row(agent, number, parity, phase) for agent in self.agent_names]
                for phase, parity in self._variants()
            ]
            for number in range(self.max_message_rounds)
        ]

    def outcome_table(self) -> list[list[list[list[Outcome]]]]:
        """Returns [round][2 * phase + seed modulo 2][decisions][label]: the outcome.

        Decisions of several verifiers are the digits of one number to the base 3, the first verifier's first.
        """
        together = list(product(DECISIONS, repeat=len(self.verifier_names)))
        return [
            [
                [
                    [self.step_all(number, each, label, seed=parity, phase=phase) for label in LABELS]
                    for each in together
                ]
                for phase, parity in self._variants()
            ]
            for number in range(self.max_message_rounds)
        ]

    def _variants(self) -> Iterator[tuple[int, int]]:
        return product(range(self.num_phases), (0, 1))

    def reward_mid_point_estimate(self, agent_name: str) -> float:
        """Returns the reward of an agent half-way between its best and its worst end by a decision."""
        common = self.common
        verifier = float(common.verifier_reward + common.verifier_incorrect_penalty) / 2
        is_prover = agent_name not in self.verifier_names and not common.shared_reward
        return common.prover_reward / 2 if is_prover else verifier

    def _channel_row(self, agent_name: str, round_number: int, seed: int, phase: int = 0) -> list[bool]:
        speaks = self.channels_in_phase(agent_name, round_number, seed, phase)
        return [channel in speaks for channel in self.message_channel_names]

    def _check_channels(self) -> None:
        """Refuses unknown agents and channels, and agents that speak in a channel that they do not hear."""
        visible = set(self.agent_channel_visibility)
        for agent, channel in self.agent_channel_visibility:
            for found, known in ((agent, self.agent_names), (channel, self.message_channel_names)):
                if found not in known:
                    near = get_close_matches(found, known, n=1)
                    hint = f'did you mean "{near[0]}"?' if near else f"expected one of: {', '.join(known)}"
                    raise SettingsError(
                        f'{type(self).__name__}.agent_channel_visibility: unknown "{found}"; {hint}', code="E0205"
                    )
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

    def active_channels(self, agent_name: str, round_number: int, seed: int) -> list[str]:
        """Returns the channels in which `is_agent_active` lets the agent speak."""
        channels = self.message_channel_names
        return [channel for channel in channels if self.is_agent_active(agent_name, round_number, channel)]
