"""The main function of a collector process: an actor, made from serialized settings and driven by commands."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from quintain.compiled.plug import accelerate
from quintain.data.fields import fields_from_json
from quintain.errors import NonFiniteError, QuintainError, ResourceError
from quintain.placements.actor import Actor
from quintain.placements.commands import FILL, Answer, Command, Lend
from quintain.placements.remote_env import describe
from quintain.placements.remote_errors import error_to_json
from quintain.placements.shared_blocks import PULSE, STOP, SharedBlocks, lay_out, measure
from quintain.placements.snapshots import align
from quintain.placements.wire import answer_to_json, contents, place_blocks, places_of, refill
from quintain.runs.acting import ActingPlan
from quintain.runs.parts import make_policy
from quintain.services.checkpoints.packed_state import pack_value
from quintain.services.processes.messages import MAX_MESSAGE_BYTES, Assembler, receive, send_text
from quintain.services.reporting.redaction import redact
from quintain.services.user_code import as_part_error
from quintain.trainers.global_streams import GlobalStreams

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
        sys.path[:] = words["sys_path"]
        os.chdir(words["cwd"])
        self.plan = ActingPlan.from_json(words)
        torch.set_num_threads(self.plan.run_file.run.threads)
        GlobalStreams().seed(self.plan.rng.child("global").child(f"collector_{self.plan.rank}"))

    def live(self) -> None:
        env = self.plan.make_env(self.plan.hosting)
        try:
            self._send(describe(env))
            words, descriptor = self._receive()
            if words:
                self._act(env, words, descriptor)
        finally:
            env.close()

    def _act(self, env: Any, words: dict[str, Any], descriptor: int) -> None:
        policies = {name: make_policy(self.plan.run_file, spec, name) for name, spec in self.plan.specs(env).items()}
        for name, policy in policies.items():
            align(policy, words["alignment"][name])
            accelerate(policy)
        self.plan.fields = {name: fields_from_json(each) for name, each in words["fields"].items()}
        size = measure(self.plan, env, policies)
        if size != words["size"]:
            raise QuintainError(f"the collector's process needs {size} bytes where the learner has {words['size']}")
        shared = lay_out(mmap.mmap(descriptor, 0), self.plan, env, policies)
        os.close(descriptor)
        collector = self.plan.make_collector(env, policies, starts_fresh=words["starts_fresh"])
        actor = Actor(collector, shared.blocks, shared.snapshots, self.plan.hosting.faults)
        self._send({})
        with _beating(actor, shared.signals):
            self._serve(actor, shared)

    def _serve(self, actor: Actor, shared: SharedBlocks) -> None:
        while True:
            words, descriptor = self._receive()
            if not words:
                return
            if words["do"] == FILL and descriptor < 0:
                self._fill(actor, shared, words)
            elif words["do"] == FILL:
                self._fill_sent(actor, shared, descriptor)
            else:
                self._obey(actor, shared, words["do"], descriptor)

    def _fill(self, actor: Actor, shared: SharedBlocks, words: dict[str, Any]) -> None:
        place_blocks(shared.blocks, words["places"])
        command = Command(FILL, {"lend": words["lend"]})
        current = actor.current_with(command)
        answer = self._answer(actor, shared, command)
        self._send({**answer_to_json(answer), "places": places_of(shared.blocks, current)})

    def _fill_sent(self, actor: Actor, shared: SharedBlocks, descriptor: int) -> None:
        """Fills blocks that came with the command, and sends them back, full or not."""
        arguments = contents(descriptor)
        command = Command(FILL, {"lend": arguments["lend"]})
        for lend, state in zip((Lend(*each) for each in arguments["lend"]), arguments["blocks"], strict=True):
            # One that was stopped is sent again, with a block that is here already.
            if lend not in actor.lent[lend.behavior]:
                shared.blocks[lend.behavior][lend.block].load_state_dict(state)
        current = actor.current_with(command)
        answer = self._answer(actor, shared, command)
        filled = [
            [each.behavior, each.block, shared.blocks[each.behavior][each.block].state_dict()] for each in current
        ]
        refill(descriptor, filled)
        os.close(descriptor)
        self._send(answer_to_json(answer))

    def _obey(self, actor: Actor, shared: SharedBlocks, do: str, descriptor: int) -> None:
        answer = self._answer(actor, shared, Command(do, contents(descriptor)))
        refill(descriptor, answer.value)
        os.close(descriptor)
        self._send(answer_to_json(answer))

    def _answer(self, actor: Actor, shared: SharedBlocks, command: Command) -> Answer:
        signals = shared.signals.numpy()
        return actor.obey(command, lambda: bool(signals[STOP]))

    def _receive(self) -> tuple[dict[str, Any], int]:
        message, descriptors = receive(self.channel, self.assembler)
        words: dict[str, Any] = json.loads(message) if message else {}
        return words, descriptors[0] if descriptors else -1

    def _send(self, words: dict[str, Any]) -> None:
        with suppress(ConnectionError):
            send_text(self.channel, json.dumps(words).encode())


@contextmanager
def _beating(actor: Actor, signals: torch.Tensor) -> Iterator[None]:
    """Copies the collector's pulse to shared memory while the block runs, from a thread of its own."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(_BEAT_SECONDS):
            signals[PULSE] = actor.pulse

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
        failed = {"failed": error_to_json(_as_ours(error), trace), "has_evidence": bool(evidence)}
        send_text(channel, json.dumps(failed).encode())
        if evidence:
            send_text(channel, pack_value(evidence))


def _as_ours(error: Exception) -> QuintainError:
    if isinstance(error, QuintainError):
        return error
    if isinstance(error, MemoryError):
        return ResourceError("the collector's process ran out of memory. Use fewer lanes or steps", code="E0803")
    first = str(error).strip().partition("\n")[0]
    return as_part_error(error) or QuintainError(
        f"the collector's process failed: {type(error).__name__}: {first}", code="E0102"
    )
