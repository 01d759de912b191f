"""One worker as the learner sees it: its lanes, its unanswered commands, and its messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quintain.envs.hosts.faults import MAX_TRACEBACK, LaneFault, lanes_in_words
from quintain.envs.hosts.worker_process import DONE, STEP
from quintain.errors import EnvError, QuintainError, SettingsError
from quintain.services.processes.supervisor import Child

if TYPE_CHECKING:
    from quintain.typing import Json, JsonObject

_MAX_WORDS, _MAX_NOTE = 10, 300


class WorkerHandle:
    """One worker process and its lanes."""

    def __init__(self, label: str, lanes: list[int], first_lane: int) -> None:
        self.label = label
        self.first_lane = first_lane
        self.lanes = lanes
        self.child: Child | None = None
        self.call = ""
        self.num_owed = 0
        """Number of commands without an answer."""
        self.num_said = 0
        self.inbox: list[JsonObject] = []

    def __str__(self) -> str:
        return f"worker {self.label} ({lanes_in_words([self.first_lane + lane for lane in self.lanes])})"

    def send(self, words: JsonObject, descriptors: Sequence[int] = ()) -> None:
        """Sends a command that will be answered."""
        assert self.child is not None, "lanes of a worker that is gone are restarted first"
        self.child.send(words, descriptors)
        self.call, self.num_owed, self.num_said = words["call"], self.num_owed + 1, 0

    def send_step(self) -> None:
        """Sends the step command, which is one byte."""
        assert self.child is not None
        self.child.send_word(STEP)
        self.call, self.num_owed, self.num_said = "step", 1, 0

    def read(self, faults: list[LaneFault], *, waits: bool = False) -> bool:
        """Reads messages that have arrived or arrive soon; returns False if the connection was closed."""
        while self.child is not None and self.num_owed:
            message = self.child.receive(waits=waits)
            if message is None:
                return True
            if message == DONE:
                self.num_owed -= 1
                continue
            self.num_said += 1
            try:
                # One fault a lane, and a few words beside them, are all that there is to say.
                if not message or self.num_said > len(self.lanes) + _MAX_WORDS:
                    return False
                self._listen(json.loads(message), faults)
            except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError):
                return False
        return True

    def take_failure(self) -> QuintainError | None:
        """Returns the reason of a failed command, if there was one since the last call."""
        said, self.inbox = self.inbox, [words for words in self.inbox if "failed" not in words]
        for words in said:
            if "failed" in words:
                kind = SettingsError if words.get("exit_code") == SettingsError.exit_code else EnvError
                notes = words.get("notes")
                shown = [str(note)[:_MAX_NOTE] for note in notes[:3]] if isinstance(notes, list) else []
                return kind(str(words["failed"]), code=str(words.get("code")), notes=shown)
        return None

    def _listen(self, words: Json, faults: list[LaneFault]) -> None:
        if not isinstance(words, dict):
            raise TypeError("a message of a worker is no JSON object")
        if "what" in words:
            faults.append(_fault_from(words, self.lanes))
        else:
            self.inbox.append(words)


def _fault_from(words: JsonObject, lanes: Sequence[int]) -> LaneFault:
    """Deserializes a worker's fault; raises if it concerns lanes of another worker."""
    found = tuple(int(lane) for lane in words["lanes"])
    names = ("call", "what", "error", "trace", "code")
    call, what, error, trace, code = (str(words[name])[: 2 * MAX_TRACEBACK] for name in names)
    if not set(found) <= set(lanes) or call not in {"step", "reset", "create"}:
        raise ValueError("a worker reported a fault that is not its own")
    return LaneFault(found, call, what, error, trace, code)
