"""Messages between the driver of a run and its ranks under Ray Train: an actor that keeps them, and a word to stop.

Ranks are threads of workers on any node, so the driver sends them no signals, and they have no terminal. The actor has
the run's directory as its name: a second driver of the same run on the same cluster finds it taken.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from quintain.errors import RunDirectoryError
from quintain.placements.ray import api

if TYPE_CHECKING:
    from quintain.typing import JsonObject

NAMESPACE = "quintain"
ASK_SECONDS = 0.25
"""Interval at which a rank asks whether it has to stop."""


class Mailbox:
    """The actor's class."""

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self.word = ""

    def post(self, message: JsonObject) -> None:
        """Keeps a message for the driver."""
        self.messages.append(message)

    def take(self) -> list[JsonObject]:
        """Returns the messages since the last call."""
        taken, self.messages = self.messages, []
        return taken

    def stop(self, word: str) -> None:
        """Tells ranks to stop, by the name of a signal."""
        self.word = word

    def ask(self) -> str:
        """Returns the name of the signal by which ranks have to stop; empty if they need not."""
        return self.word


def open_mailbox(name: str) -> api.Handle:
    """Starts the mailbox of a run on the driver's node, so that no other takes it along; refuses a run that has one."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {
        "name": name,
        "namespace": NAMESPACE,
        "num_cpus": 0,
        "max_restarts": 0,
        "scheduling_strategy": here,
    }
    try:
        return ray.remote(**options)(Mailbox).remote()
    except ValueError as error:
        run = name.rpartition("/")[2]
        raise RunDirectoryError(
            f'run "{run}" is being trained on this Ray cluster by another driver. Wait for its end, or use another '
            f"--run-id",
            code="E0301",
        ) from error


class Desk(io.TextIOBase):
    """A rank's side of the mailbox: a stream for its console, messages, and a thread that hears of stops."""

    def __init__(self, mailbox: api.Handle, rank: int, on_stop: Callable[[str], None]) -> None:
        super().__init__()
        self.mailbox = mailbox
        self.rank = rank
        self.saved: Callable[[], str | None] = lambda: None
        """Returns the name of the last checkpoint, which the driver wants to know."""
        self._on_stop = on_stop
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        self.post({"text": text})
        return len(text)

    def writable(self) -> bool:
        return True

    def post(self, message: JsonObject, *, waits: bool = False) -> None:
        """Sends the driver a message, in order; `waits` until it has arrived."""
        reference = self.mailbox.post.remote({"rank": self.rank, **message})
        if waits:
            with suppress(api.RayFailure):
                api.get(reference)

    def leave(self) -> None:
        """Ends the thread."""
        self._is_over.set()
        self._thread.join(timeout=api.CALL_SECONDS)

    def _listen(self) -> None:
        heard, told = "", None
        while not self._is_over.wait(ASK_SECONDS):
            if (name := self.saved()) != told:
                told = name
                self.post({"saved": name})
            try:
                word = str(api.get(self.mailbox.ask.remote()))
            except api.RayFailure:
                # The driver is gone, and Ray ends this process with it.
                return
            if word and word != heard:
                heard = word
                self._on_stop(word)
