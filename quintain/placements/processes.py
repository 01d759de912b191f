"""Acts in a second process: blocks and weights are in memory that both share, commands are small messages.

The process is forked by a server like those of environment workers, ends with the learner, and sends nothing that could
become code here.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from quintain.data.rollout import Rollout
from quintain.errors import CollectorDied, NonFiniteError, QuintainError, SettingsError
from quintain.placements.ahead import AheadSource
from quintain.placements.commands import FILL, Answer, Command
from quintain.placements.plan import ActingPlan
from quintain.placements.remote_env import RemoteEnv
from quintain.placements.remote_errors import RemoteTraceback, error_from
from quintain.placements.settings import ProcessesSettings
from quintain.placements.shared_blocks import SharedBlocks, lay_out, measure
from quintain.placements.wire import answer_from, contents, parcel
from quintain.policies.base import Policy
from quintain.rollouts.sync_collector import EpisodeListener
from quintain.services import unnamed_memory
from quintain.services.packed_state import unpack_value
from quintain.services.supervisor import Supervisor

CHILD_MODULE = "quintain.collector_process"
START_SECONDS = 300.0
"""How long the other process may take to import everything and to make the environment."""
_LAST_WORDS_SECONDS = 2.0


class ProcessesPlacement:
    """Makes the environment in another process, which says what it is like."""

    def __init__(self, settings: ProcessesSettings, plan: ActingPlan) -> None:
        self.plan = plan
        self.process = CollectorProcess(plan)
        self.env = self.process.env

    def furnish(
        self, policy: Policy, on_episodes: EpisodeListener, *, starts_fresh: bool
    ) -> tuple[AheadSource, Sequence[Rollout]]:
        shared = self.process.attach(self.plan, policy, starts_fresh=starts_fresh)
        faults = self.plan.hosting.faults
        source = AheadSource(self.process, shared.blocks, shared.snapshots, policy, faults, on_episodes)
        return source, shared.blocks


class CollectorProcess:
    """The learner's end of the conversation."""

    def __init__(self, plan: ActingPlan) -> None:
        words = plan.in_words()
        supervisor = Supervisor([CHILD_MODULE], plan.pass_environment)
        self.supervisors = [supervisor]
        self._supervisor = supervisor
        self._child = supervisor.start("collector", f"{CHILD_MODULE}:serve")
        self._parcels: deque[tuple[Command, int | None]] = deque()
        """The commands that are not answered, each with the memory that holds its arguments and is for its answer."""
        self._failure: QuintainError | None = None
        self._poller = select.poll()
        for descriptor in (self._child.channel.fileno(), supervisor.report_descriptor):
            self._poller.register(descriptor, select.POLLIN)
        path = [os.path.abspath(entry) for entry in sys.path]
        self._child.send({**words, "sys_path": path, "cwd": os.getcwd()})
        self.env = RemoteEnv(self._first_words())

    def attach(self, plan: ActingPlan, policy: Policy, *, starts_fresh: bool) -> SharedBlocks:
        """Makes the memory that both processes share, and lets the other one begin."""
        size = measure(plan, self.env, policy)
        descriptor = unnamed_memory.allocate(size)
        self._child.send({"starts_fresh": starts_fresh, "size": size}, [descriptor])
        self.shared = lay_out(mmap.mmap(descriptor, 0), plan, self.env, policy)
        os.close(descriptor)
        self._first_words()
        return self.shared

    def send(self, command: Command) -> None:
        if command.do == FILL:
            block = self.shared.blocks[command.arguments["block"]]
            # Not in shared memory, because these are Python's numbers.
            place = {"sequence": block.sequence, "num_final": block.final.count}
            self._parcels.append((command, None))
            self._child.send({"do": FILL, **command.arguments, **place})
            return
        descriptor = parcel(_plain(command.arguments))
        self._parcels.append((command, descriptor))
        self._child.send({"do": command.do}, [descriptor])

    def receive(self, seconds: float) -> Answer | None:
        words = self._next_words(seconds)
        if words is None:
            return None
        answer = answer_from(words)
        command, descriptor = self._parcels.popleft()
        if descriptor is not None:
            answer.value = contents(descriptor) if answer.is_done else None
            os.close(descriptor)
        else:
            block = self.shared.blocks[command.arguments["block"]]
            block.sequence, block.final.count = int(words["sequence"]), int(words["num_final"])
        return answer

    def interrupt(self, is_wanted: bool) -> None:
        self.shared.flag[0] = is_wanted

    def close(self) -> None:
        if hasattr(self, "shared"):
            self.interrupt(True)
        self._child.hang_up()
        self._supervisor.stop([self._child], first=None)
        for _, descriptor in self._parcels:
            if descriptor is not None:
                os.close(descriptor)
        self._parcels.clear()

    def _first_words(self) -> dict[str, Any]:
        """Waits for what the other process says while it is made; closes it if that is an error."""
        try:
            words = self._next_words(START_SECONDS)
            if words is None:
                what = f"the collector's process did not make its environment within {START_SECONDS:g} s"
                raise CollectorDied(what, code="E0541")
        except BaseException:
            self.close()
            raise
        return words

    def _next_words(self, seconds: float) -> dict[str, Any] | None:
        if self._failure is not None:
            raise self._failure
        deadline = time.monotonic() + seconds
        while True:
            message = self._child.receive()
            if message:
                return self._read(message)
            if message is not None or self._child.is_over:
                self._failure = self._death()
                raise self._failure
            remaining = deadline - time.monotonic()
            if remaining <= 0.0:
                return None
            self._poller.poll(remaining * 1000.0)
            self._supervisor.read_reports()

    def _read(self, message: bytes) -> dict[str, Any]:
        try:
            words: dict[str, Any] = json.loads(message)
            if "failed" not in words:
                return words
            self._failure = error_from(words["failed"])
            if words["has_evidence"] and isinstance(self._failure, NonFiniteError):
                self._failure.evidence = self._evidence()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._failure = CollectorDied(f"the collector's process sent nonsense ({error})", code="E0541")
        raise self._failure

    def _evidence(self) -> dict[str, Any]:
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while time.monotonic() < deadline:
            message = self._child.receive()
            if message is not None:
                return dict(unpack_value(message)) if message else {}
            self._poller.poll(100.0)
        return {}

    def _death(self) -> CollectorDied:
        with suppress(QuintainError):
            self._supervisor.await_end(self._child, _LAST_WORDS_SECONDS)
        ending = self._child.describe_end() if self._child.is_over else "left the conversation"
        error = CollectorDied(
            f"the collector's process {ending}, and where its lanes were went with it. Continue from the last "
            f"checkpoint with: quintain resume"
        )
        trace = "\n".join(filter(None, (self._child.stack(), self._child.last_output)))
        error.__cause__ = RemoteTraceback(trace) if trace else None
        return error


def _plain(arguments: Any) -> Any:
    """Returns arguments as what a checkpoint could hold; refuses functions, which only a thread can be given."""
    if callable(arguments):
        raise SettingsError(
            "run.placement.type processes cannot call functions of this process at every step; use threads or local",
            code="E0251",
        )
    if isinstance(arguments, dict):
        return {name: _plain(value) for name, value in arguments.items()}
    return [_plain(value) for value in arguments] if isinstance(arguments, list | tuple) else arguments
