"""The main function of a collector process: an actor, made from serialized settings and driven by commands."""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import socket
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quintain.data.fragments import FragmentBlock
from quintain.errors import NonFiniteError, QuintainError
from quintain.placements.actor import Actor
from quintain.placements.commands import FILL, Answer, Command, Lend
from quintain.placements.remote_errors import error_to_json
from quintain.placements.shared_blocks import PULSE, STOP, SharedBlocks, lay_out, measure
from quintain.placements.wire import answer_to_json, contents, place_blocks, places_of, refill
from quintain.policies.base import Policy
from quintain.runs.acting import ActingPlan
from quintain.runs.hosted_collectors import HostedCollectors, as_ours
from quintain.services.checkpoints.packed_state import pack_value
from quintain.services.processes.child_environment import take_code_paths
from quintain.services.processes.messages import MAX_MESSAGE_BYTES, Assembler, receive, send_text
from quintain.services.processes.unnamed_memory import ProcessLock
from quintain.services.reporting.redaction import redact

if TYPE_CHECKING:
    from quintain.typing import Array, JsonObject

_BEAT_SECONDS = 0.25


def serve(descriptor: int) -> None:
    """Runs the process until the learner closes the connection, or until an error, which is sent."""
    # The learner is told to stop too, and needs this process until it has saved what is in it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = socket.socket(fileno=descriptor)
    try:
        CollectorServer(channel).live()
    except Exception as error:
        _tell_failure(channel, error)
        # To end with commands unread would take back what was just sent; so it ends when the learner has read it.
        with suppress(ConnectionError):
            while channel.recv(MAX_MESSAGE_BYTES):
                pass


class CollectorServer:
    """The collector's side of the connection."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.assembler = Assembler()
        words, _ = self._receive()
        take_code_paths(words)
        self.collectors = HostedCollectors(words)

    def live(self) -> None:
        try:
            self._send({"envs": self.collectors.make_envs()})
            words, descriptor = self._receive()
            if words:
                self._act(words, descriptor)
        finally:
            self.collectors.close()

    def _act(self, words: dict[str, Any], descriptor: int) -> None:
        def in_shared_memory(plan: ActingPlan, num_lanes: int, policies: Mapping[str, Policy]) -> SharedBlocks:
            size = measure(plan, num_lanes, policies)
            if size != words["size"]:
                raise QuintainError(f"the collector's process needs {size} bytes where the learner has {words['size']}")
            shared = lay_out(mmap.mmap(descriptor, 0), plan, num_lanes, policies)
            lock = ProcessLock(descriptor)
            for block in (each for some in shared.blocks.values() for each in some if isinstance(each, FragmentBlock)):
                block.lock = lock
            return shared

        takes_turns = len(self.collectors.numbers) > 1
        actors, shared = self.collectors.make_actors(words, in_shared_memory, takes_turns=takes_turns)
        os.close(descriptor)
        hosted = {
            number: HostedActor(number, actor, shared.signals[number].numpy()) for number, actor in actors.items()
        }
        self._send({})
        with _beating(list(hosted.values())):
            self._serve(hosted)

    def _serve(self, hosted: dict[int, HostedActor]) -> None:
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        waiting: deque[tuple[JsonObject, int]] = deque()
        while True:
            while not waiting or poller.poll(0):
                words, descriptor = self._receive()
                if not words:
                    return
                waiting.append((words, descriptor))
            words, descriptor = waiting.popleft()
            number = words["collector"]
            if not self._execute(hosted[number], words, descriptor):
                # Its turn is over: its commands wait, in their order, until each of the others has had one.
                waiting.appendleft((words, descriptor))
                waiting = deque(sorted(waiting, key=lambda each: each[0]["collector"] == number))

    def _execute(self, host: HostedActor, words: JsonObject, descriptor: int) -> bool:
        """Executes a command and sends the answer; returns False if its turn ended before."""
        if words["do"] == FILL and descriptor < 0:
            return self._fill(host, words)
        if words["do"] == FILL:
            self._fill_sent(host, descriptor)
            return True
        answer = host.obey(Command(words["do"], contents(descriptor)))
        assert answer is not None, "only fills of fragments take turns"
        refill(descriptor, answer.value)
        os.close(descriptor)
        self._send(host.to_json(answer))
        return True

    def _fill(self, host: HostedActor, words: JsonObject) -> bool:
        blocks = host.actor.blocks
        # Again at each turn: what collectors that take turns share is all in the memory of the block.
        place_blocks(blocks, words["places"])
        command = Command(FILL, {"lend": words["lend"]})
        current = host.actor.current_with(command)
        answer = host.obey(command)
        if answer is not None:
            self._send({**host.to_json(answer), "places": places_of(blocks, current)})
        return answer is not None

    def _fill_sent(self, host: HostedActor, descriptor: int) -> None:
        """Fills blocks that came with the command, and sends them back, full or not."""
        actor, arguments = host.actor, contents(descriptor)
        command = Command(FILL, {"lend": arguments["lend"]})
        for lend, state in zip((Lend(*each) for each in arguments["lend"]), arguments["blocks"], strict=True):
            # One that was stopped is sent again, with a block that is here already.
            if lend not in actor.lent[lend.behavior]:
                actor.blocks[lend.behavior][lend.block].load_state_dict(state)
        current = actor.current_with(command)
        answer = host.obey(command)
        assert answer is not None, "only fills of fragments take turns"
        filled = [[each.behavior, each.block, actor.blocks[each.behavior][each.block].state_dict()] for each in current]
        refill(descriptor, filled)
        os.close(descriptor)
        self._send(host.to_json(answer))

    def _receive(self) -> tuple[dict[str, Any], int]:
        message, descriptors = receive(self.channel, self.assembler)
        words: dict[str, Any] = json.loads(message) if message else {}
        return words, descriptors[0] if descriptors else -1

    def _send(self, words: dict[str, Any]) -> None:
        with suppress(ConnectionError):
            send_text(self.channel, json.dumps(words).encode())


@dataclass(frozen=True)
class HostedActor:
    """One of the process's actors, with its signals in shared memory."""

    number: int
    actor: Actor
    signals: Array

    def obey(self, command: Command) -> Answer | None:
        return self.actor.obey(command, lambda: bool(self.signals[STOP]))

    def to_json(self, answer: Answer) -> dict[str, Any]:
        return {**answer_to_json(answer), "collector": self.number}


@contextmanager
def _beating(hosted: Sequence[HostedActor]) -> Iterator[None]:
    """Copies the pulse of the process to shared memory while the block runs, from a thread of its own.

    Collectors take turns, so that the pulse of each is that of all.
    """
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(_BEAT_SECONDS):
            pulse = sum(host.actor.pulse for host in hosted)
            for host in hosted:
                host.signals[PULSE] = pulse

    thread = threading.Thread(target=beat, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=2 * _BEAT_SECONDS)


def _tell_failure(channel: socket.socket, error: Exception) -> None:
    trace = redact("".join(traceback.format_exception(error)))
    evidence = error.evidence if isinstance(error, NonFiniteError) else {}
    with suppress(ConnectionError):
        failed = {
            "failed": error_to_json(as_ours(error, "the collector's process"), trace),
            "has_evidence": bool(evidence),
        }
        send_text(channel, json.dumps(failed).encode())
        if evidence:
            send_text(channel, pack_value(evidence))
