"""The archive of finished conversations: JSON lines in the run directory, each on disk as soon as it is finished.

One file for each iteration and split, one line for each index, in the order in which conversations finish. Readers get
them in the order of their indices. Checkpoints hold the number and a hash of each completed file, and no text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from quintain.errors import CheckpointError, RunDirectoryError
from quintain.services.files.line_file import LineFile, read_lines
from quintain.text.prompts import AgentTurn
from quintain.text.providers.base import Message

if TYPE_CHECKING:
    from quintain.typing import JsonObject, State

Split: TypeAlias = Literal["train", "test"]


@dataclass
class Conversation:
    """One finished conversation."""

    iteration: int
    split: Split
    index: int
    point_id: str
    y: int
    prover_stance: int
    question: str
    solution: str
    turns: list[AgentTurn] = field(default_factory=list)
    rewards: list[dict[str, float]] = field(default_factory=list)
    """The reward of every agent, round by round."""
    seed: int = 0

    @property
    def decision(self) -> int:
        return min((turn.decision for turn in self.turns), default=2)

    def total_reward(self, agent: str) -> float:
        return sum(each.get(agent, 0.0) for each in self.rewards)

    def to_json(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_json(cls, record: JsonObject) -> Conversation:
        """Reads a record of a file, which may be anything."""
        facts = dict(record)
        facts["turns"] = [
            AgentTurn(**{**turn, "prompt": tuple(Message(**each) for each in turn["prompt"])})
            for turn in facts["turns"]
        ]
        found = cls(**facts)
        _require_conversation(found)
        return found


def _require_conversation(talk: Conversation) -> None:
    """Raises ValueError or TypeError for fields that a conversation cannot have."""
    counts = [talk.iteration, talk.index, talk.y, talk.prover_stance, talk.seed]
    texts: list[object] = [talk.point_id, talk.question, talk.solution]
    for turn in talk.turns:
        counts += [turn.round, turn.decision, turn.retries]
        texts += [turn.agent, turn.raw, *turn.messages, *turn.messages.values()]
        texts += [text for each in turn.prompt for text in (each.role, each.content, each.name or "")]
    if any(type(each) is not int or each < 0 for each in counts) or any(turn.decision > 2 for turn in talk.turns):
        raise ValueError("a count or a decision is none")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"a text is {type(text).__name__}")
        text.encode()  # a lone surrogate cannot be stored or sent
    if not isinstance(talk.rewards, list) or talk.split not in ("train", "test"):
        raise ValueError("rewards are no list, or split is neither train nor test")
    if any(type(reward) not in (int, float) for each in talk.rewards for reward in each.values()):
        raise ValueError("a reward is no number")


class Archive:
    """Keeps conversations by (iteration, split, index)."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.completed: dict[str, dict[str, object]] = {}
        """File name -> number and hash of its conversations, for iterations that are complete."""
        self._open: tuple[str, LineFile] | None = None
        self._read: dict[str, dict[int, Conversation]] = {}

    def open(self, folder: Path) -> None:
        """Uses a folder of the run, and compares it with what the checkpoint says of it."""
        if self.folder is not None:
            return
        self.folder = folder
        for name, facts in self.completed.items():
            found = self._load(name)
            if len(found) < int(str(facts["count"])) or _digest(found) != facts["sha256"]:
                raise CheckpointError(
                    f"{folder / name} has {len(found)} conversations that are not those of the checkpoint "
                    f"({facts['count']}). Restore the file; the run cannot go on without it",
                    code="E0410",
                )

    def conversations(self, iteration: int, split: Split) -> Mapping[int, Conversation]:
        """Returns the finished conversations by index, in order."""
        return dict(sorted(self._load(_name(iteration, split)).items()))

    def append(self, *finished: Conversation) -> None:
        """Writes finished conversations of one iteration and split; they survive a power cut from here on."""
        for conversation in finished:
            name = _name(conversation.iteration, conversation.split)
            known = self._load(name)
            if conversation.index in known:
                raise ValueError(f"conversation {conversation.index} of {name} is already there")
            if self._open is None or self._open[0] != name:
                self.close()
                assert self.folder is not None
                self._open = name, LineFile(self.folder / name)
            self._open[1].append(json.dumps(conversation.to_json()).encode())
            known[conversation.index] = conversation
        if self._open is not None:
            self._open[1].sync()

    def complete(self, iteration: int, split: Split) -> None:
        """Notes that all conversations of an iteration are there."""
        name = _name(iteration, split)
        found = self._load(name)
        self.completed[name] = {"count": len(found), "sha256": _digest(found)}

    def forget(self, before: int) -> None:
        """Drops texts of earlier iterations from memory."""
        for name in [name for name in self._read if int(name.split("-")[1][:6]) < before]:
            del self._read[name]

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def state_dict(self) -> State:
        return {"completed": self.completed}

    def load_state_dict(self, state: State) -> None:
        self.completed = {str(name): dict(facts) for name, facts in state["completed"].items()}
        for name in self.completed:
            split, _, number = name.removesuffix(".jsonl").partition("-")
            if split not in ("train", "test") or not number.isdigit():
                raise ValueError(f"{name!r} is no file of conversations")

    def _load(self, name: str) -> dict[int, Conversation]:
        if name not in self._read:
            assert self.folder is not None
            self._read[name] = read_conversations(self.folder / name)
        return self._read[name]


def read_conversations(path: Path) -> dict[int, Conversation]:
    """Reads a file of conversations; there is one line for each index."""
    found: dict[int, Conversation] = {}
    for number, (_, line) in enumerate(read_lines(path), start=1):
        try:
            conversation = Conversation.from_json(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RunDirectoryError(
                f"{path}:{number}: {type(error).__name__} ({error}), expected a conversation. Remove that line; it is "
                f"sampled again",
                code="E0308",
            ) from error
        if _name(conversation.iteration, conversation.split) != path.name:
            raise RunDirectoryError(
                f"{path}:{number}: a conversation of iteration {conversation.iteration}, {conversation.split}. Remove "
                f"that line",
                code="E0308",
            )
        if conversation.index in found:
            raise RunDirectoryError(f"{path}:{number}: index {conversation.index} stands there twice", code="E0308")
        found[conversation.index] = conversation
    return found


def _name(iteration: int, split: Split) -> str:
    return f"{split}-{iteration:06d}.jsonl"


def _digest(conversations: Mapping[int, Conversation]) -> str:
    whole = hashlib.sha256()
    for _, conversation in sorted(conversations.items()):
        whole.update(json.dumps(conversation.to_json(), sort_keys=True).encode())
    return whole.hexdigest()
