"""Prompts from template files, and the parsing of answers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from string import Template

from quintain.errors import SettingsError
from quintain.experiments.protocols.base import ACCEPT, CONTINUE, REJECT, ProtocolHandler
from quintain.services import plain_files
from quintain.text.protocols import VERIFIER, must_decide
from quintain.text.providers.base import Message
from quintain.text.scenario import DataPoint

MUST_DECIDE = 'You must decide now. Answer with one line: "Decision: accept" or "Decision: reject".'
_DECISION = re.compile(r"^[ \t]*decision:[ \t]*(accept|reject)\b", re.IGNORECASE | re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*(?:question|message) (?:for|to) (prover[01])[ \t]*:", re.IGNORECASE | re.MULTILINE)
_MAX_TEMPLATE_BYTES = 1_000_000


@dataclass
class AgentTurn:
    """What one agent said in one round."""

    agent: str
    round: int
    prompt: tuple[Message, ...]
    raw: str
    """The whole answer, as the model gave it."""
    messages: dict[str, str] = field(default_factory=dict)
    """What it says in each channel."""
    decision: int = CONTINUE
    retries: int = 0
    is_cut: bool = False
    """Whether the answer was cut off by the limit of tokens."""


class Prompts:
    """Builds the messages that an agent is asked with."""

    def __init__(
        self,
        protocol: ProtocolHandler,
        folder: str | None,
        max_words: Mapping[str, int],
        randomizes_order: bool = False,
    ) -> None:
        self.protocol = protocol
        self.folder = folder
        self.max_words = max_words
        self.randomizes_order = randomizes_order

    @cached_property
    def templates(self) -> dict[str, Template]:
        """The template of each agent."""
        found, shipped = {}, files("quintain.text").joinpath("templates")
        for agent in self.protocol.agent_names:
            name = f"{self.protocol.hyper_params.get('interaction_protocol')}/{agent}.txt"
            try:
                if self.folder is None:
                    own = shipped.joinpath(name)
                    # A protocol without templates has those of nip.
                    other = shipped.joinpath("nip", f"{VERIFIER if agent == VERIFIER else 'prover'}.txt")
                    text = (own if own.is_file() else other).read_text("utf-8")
                else:
                    text = plain_files.read(Path(self.folder) / name, _MAX_TEMPLATE_BYTES).decode()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(
                    f"experiment.loop.scenario.templates: cannot read {name} in {self.folder} ({error}); write a "
                    f"template for each of {', '.join(self.protocol.agent_names)}",
                    code="E0210",
                ) from error
            found[agent] = Template(text.strip())
        return found

    def build(
        self, agent: str, round_number: int, seed: int, point: DataPoint, turns: Sequence[AgentTurn]
    ) -> tuple[Message, ...]:
        """Returns the system prompt and all that the agent has heard and said so far."""
        protocol = self.protocol
        # The stance of a prover is the decision that it is paid for.
        pays = protocol.prover_rewards(ACCEPT, point.y, point.prover_stance).get(agent, 0.0)
        is_for = pays >= protocol.prover_rewards(REJECT, point.y, point.prover_stance).get(agent, 0.0)
        words = {
            "question": point.question,
            "solution": point.solution,
            "stance": "correct" if is_for else "wrong",
            "name": agent,
            "max_questions": str(protocol.max_verifier_questions + 1),
            "max_response_words": str(self.max_words[agent]),
        }
        try:
            messages = [Message("system", self.templates[agent].substitute(words))]
        except (KeyError, ValueError) as error:
            raise SettingsError(
                f"the template of {agent} has {error}, expected only: {', '.join('$' + name for name in words)}",
                code="E0205",
            ) from error
        visible = set(protocol.agent_channel_visibility)
        for turn in self._as_heard(turns, seed):
            if turn.agent == agent:
                messages.append(Message("assistant", turn.raw))
                continue
            heard = {text: None for channel, text in turn.messages.items() if (agent, channel) in visible}
            if heard:
                messages.append(Message("user", "\n".join(heard), name=turn.agent))
        if agent == VERIFIER and must_decide(protocol, round_number, seed):
            messages.append(Message("system", MUST_DECIDE))
        return tuple(messages)

    def _as_heard(self, turns: Sequence[AgentTurn], seed: int) -> list[AgentTurn]:
        """Returns turns in the order in which they are heard: those of one round may be turned around, by the seed."""
        ordered: list[AgentTurn] = []
        for number, together in groupby(turns, key=lambda turn: turn.round):
            spoken = list(together)
            is_turned = self.randomizes_order and hashlib.sha256(f"{seed}/{number}".encode()).digest()[0] % 2
            ordered += reversed(spoken) if is_turned else spoken
        return ordered

    def parse(self, agent: str, round_number: int, seed: int, raw: str) -> tuple[dict[str, str], int] | None:
        """Returns messages by channel and the decision; None for an answer that cannot be used.

        Only a verifier decides, by a line that begins with "Decision:", and only when a decision counts.
        """
        protocol = self.protocol
        if not raw.strip():
            return None
        if agent == VERIFIER:
            if protocol.can_decide(round_number, seed) and (found := _DECISION.search(raw)):
                return {}, ACCEPT if found[1].lower() == "accept" else REJECT
            if must_decide(protocol, round_number, seed):
                return None
        channels = protocol.active_channels(agent, round_number, seed)
        if len(channels) == 1:
            return {channels[0]: raw.strip()}, CONTINUE
        parts = _HEADER.split(raw)
        if len(parts) == 1:
            return dict.fromkeys(channels, raw.strip()), CONTINUE
        said = {f"{name.lower()}_channel": text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}
        return {channel: text for channel, text in said.items() if text}, CONTINUE
