"""A collector in a rollout actor: commands become calls, and blocks come back through the object store.

A block is returned once into the object store, read from there without a copy, and copied once into the learner's
block; fragments come as soon as they are complete. What an actor died before it could return is collected again.

Fragments of all actors go to one block. When it is full, actors that still fill it are told; what they had collected
beyond goes to their next block.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from quintain.data import fields as f
from quintain.data.fragments import FragmentBlock
from quintain.envs.hosts.faults import FaultNews, LaneFault
from quintain.errors import QuintainError
from quintain.placements.commands import FILL, RETIRE, Answer, Command, Lend
from quintain.placements.fleet import joined_news, joined_pieces
from quintain.placements.plan import Blocks
from quintain.placements.processes import plain_arguments
from quintain.placements.ray import api
from quintain.placements.ray.weights import PublishedToActors, PutWeights
from quintain.placements.ray.worker import RolloutWorker, group_of
from quintain.placements.wire import answer_from_json, as_arrays
from quintain.rollouts.sync_collector import never
from quintain.services.checkpoints.packed_state import pack_value, unpack_value
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.typing import JsonObject, Saved, State, TrainingEnv

PULSE_SECONDS = 1.0
"""Interval at which an actor that is waited for is asked whether it makes progress."""
STOP_SECONDS = 5.0
"""How long an actor may take to hear of a stop; one that hangs is found by its pulse."""


@dataclass
class Brought:
    """A result that a reader brings to this node."""

    result: api.Reference
    size: int = 1
    """Number of its blocks or fragments, once it is here."""


@dataclass
class Sent:
    """A command without an answer, and the reference to its reply."""

    command: Command
    reference: api.Reference
    ends: list[Saved]
    """Lent blocks that are open no longer when it is done."""
    brought: deque[Brought] = field(default_factory=deque)
    """The next results, which readers took before the learner asked for them."""
    is_read: bool = False
    """Whether a reader has found its end."""
    reply: tuple[JsonObject, Saved] | None = None
    """The reply, once it is whole."""
    is_told: bool = False
    """Whether the actor knows that others have filled the block."""
    heard: list[Answer] = field(default_factory=list)
    """What came with its pieces."""


class RayCollector:
    """A collector in a rollout actor, which may host several; implements `RemoteCollector`."""

    def __init__(
        self,
        worker: RolloutWorker,
        number: int,
        env: TrainingEnv,
        blocks: Blocks,
        weights: PutWeights,
        *,
        sends_blocks: bool,
        streams: bool,
    ) -> None:
        """Takes its number and its parts of blocks; with `sends_blocks`, they are sent with every command.

        With `streams`, fragments come back one by one; else each collector's share of a block at once.
        """
        self.worker = worker
        self.number = number
        self.env = env
        self.blocks = blocks
        self.weights = weights
        self.sends_blocks, self.streams = sends_blocks, streams
        self.has_fragments = any(isinstance(block, FragmentBlock) for some in blocks.values() for block in some)
        self._options = {"concurrency_group": group_of(number)} if self.has_fragments and streams else {}
        """Collectors of fragments act beside others of their actor, but through `ray://`, where no group can be named;
        others take turns, so that their runs are exact."""
        self._beyond: deque[tuple[State, int]] = deque()
        """Fragments that the block had no room for, each piece with the number of those that had."""
        self.supervisors: Sequence[Supervisor] = ()
        self.pulse = 0
        self._pulse: api.Reference | None = None
        self._asked_at = time.monotonic()
        self._unanswered: deque[Sent] = deque()
        self._reading = threading.Lock()
        """Held while a result is taken from where it is, or a command becomes one that readers see."""
        self._is_waited_for = False
        """Whether the learner takes the next result itself, so that readers leave it alone."""
        self._is_stopping = False
        self._open: list[Saved] = []
        """Lent blocks that are not full, in order."""
        self._same: set[tuple[str, int]] = set()
        """Blocks of which the actor has what is here, so that they need not be sent."""
        self._standing: Command | None = None
        """Where an actor that is started again begins: a restored state, or new episodes after the last data."""
        self._parameters: State = {}
        self._retired: dict[str, Command] = {}
        self._news = FaultNews()
        worker.members.append(self)

    def send(self, command: Command) -> None:
        retired = command.arguments["behavior"] if command.do == RETIRE else None
        ends = [lend for lend in self._open if lend[0] == retired]
        sent = Sent(command, self._submit(command), ends)
        with self._reading:
            self._unanswered.append(sent)

    def _submit(self, command: Command) -> api.Reference:
        handle = self.worker.handle
        if command.do == FILL:
            lends = command.arguments["lend"]
            self._open += [lend for lend in lends if lend not in self._open]
            blocks = [self._block(Lend(*lend)) for lend in lends]
            if self.has_fragments and self.streams:
                fill = handle.fill_by_pieces.options(num_returns="streaming", **self._options)
                return fill.remote(self.number, lends, blocks)
            if self.has_fragments:
                return handle.fill_with_fragments.remote(self.number, lends, blocks)
            weights = [self.weights.of(Lend(*lend)) for lend in lends]
            return handle.fill.remote(self.number, lends, blocks, *weights)
        arguments = plain_arguments(command.arguments)
        weights = []
        if command.do == RETIRE:
            behavior = arguments["behavior"]
            self._retired[behavior] = command
            weights = [self.weights.of(Lend(behavior, arguments["block"], arguments["version"]))]
        elif command.do in ("restore", "begin_anew"):
            self._open, self._retired, self._standing = [], {}, command
            self._same.clear()
            self._beyond.clear()
        elif command.do in ("set_env_parameters", "restore_env_parameters"):
            self._parameters |= arguments["values"]
        return handle.obey.options(**self._options).remote(self.number, command.do, pack_value(arguments), *weights)

    def _block(self, lend: Lend) -> JsonObject:
        """Returns what the actor needs of a block: all, unless it has filled it before."""
        block, place = self.blocks[lend.behavior][lend.block], (lend.behavior, lend.block)
        self._retired.pop(lend.behavior, None)
        if isinstance(block, FragmentBlock):
            share = block.num_lanes if self.streams else -(-block.num_lanes // block.num_parts)
            return {"sequence": block.sequence, "num_held": max(block.num_fragments, block.num_lanes - share)}
        if self.sends_blocks or place not in self._same:
            self._same.add(place)
            found: JsonObject = as_arrays(block.contents())
            return found
        return {"sequence": block.sequence}

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        if self.worker.failure is not None:
            raise self.worker.failure
        sent = self._unanswered[0]
        self._look_at_block(sent)
        try:
            reply = self._reply_to(sent, seconds)
        except api.Lost as error:
            self.worker.start_again(error)
            return None
        if reply is None:
            self._ask_for_pulse()
            return None
        with self._reading:
            self._unanswered.popleft()
        words, data = reply
        answer = joined_pieces([*sent.heard, answer_from_json(words)])
        if sent.command.do == FILL:
            self._take_data(data)
            if answer.is_done and answer.report is not None:
                self.worker.num_deaths = 0
                self._stand(words["standing"])
                sent.ends += [next(lend for lend in self._open if lend[0] == name) for name in answer.report.filled]
                for filled in answer.report.filled.values():
                    if self._beyond:
                        filled.metrics["fragments/open"] += self._num_steps_beyond
        else:
            answer.value = unpack_value(data)
            if sent.command.do == "save" and self._beyond:
                answer.value["num_open"] += self._num_steps_beyond
        if answer.is_done:
            self._open = [lend for lend in self._open if lend not in sent.ends]
        if self._news.told:
            answer.faults = joined_news([self._news, answer.faults])
            self._news = FaultNews()
        return answer

    def _reply_to(self, sent: Sent, seconds: float) -> tuple[JsonObject, Saved] | None:
        """Takes in the pieces that are there; returns the reply when it is whole; raises `Lost`."""
        while sent.reply is None and (result := self._result(sent, seconds)) is not None:
            words, data = self.worker.reply(result)
            if words.get("is_piece"):
                self._take_data(data)
                self._stand(words["standing"])
                sent.heard.append(answer_from_json(words))
                seconds = 0.0
            else:
                sent.reply = words, data
        return sent.reply

    def _result(self, sent: Sent, seconds: float) -> api.Reference | None:
        """Returns the next result of a command, or None if it has none within this time."""
        with self._reading:
            if sent.brought:
                return sent.brought.popleft().result
            self._is_waited_for = True
        try:
            return api.next_of(sent.reference) if api.is_ready(sent.reference, seconds) else None
        finally:
            self._is_waited_for = False

    # -- for readers, in their threads -----------------------------------------------------------------------------

    @property
    def num_brought(self) -> int:
        """Number of blocks or fragments that wait on this node."""
        with self._reading:
            return sum(each.size for sent in self._unanswered for each in sent.brought)

    def unread(self) -> api.Reference | None:
        """Returns the call whose next result may be brought here, while the learner does something else."""
        with self._reading:
            sent = self._unread()
            return None if sent is None else sent.reference

    def bring(self, reference: api.Reference) -> None:
        """Brings the next result of a call to this node, unless the learner has taken it meanwhile."""
        with self._reading:
            sent = self._unread()
            if sent is None or sent.reference is not reference or not api.is_ready(reference):
                return
            try:
                brought = Brought(api.next_of(reference))
            except api.Lost:
                sent.is_read = True
                return
            sent.is_read = brought.result is reference
            sent.brought.append(brought)
        # Not while the learner, or a command of its, would have to wait for it.
        brought.size = self._size_of(brought.result)

    def _unread(self) -> Sent | None:
        if self._is_waited_for:
            return None
        return next((sent for sent in self._unanswered if sent.command.do == FILL and not sent.is_read), None)

    def _size_of(self, result: api.Reference) -> int:
        # What failed is the learner's to find.
        with suppress(api.RayFailure):
            words, data = api.get(result)
            if self.has_fragments and "failed" not in words:
                return sum(_num_fragments(state) for _, _, state in data)
        return 1

    # -- for the learner -------------------------------------------------------------------------------------------

    def _take_data(self, data: Saved) -> None:
        for behavior, number, state in data:
            block = self.blocks[behavior][number]
            if isinstance(block, FragmentBlock):
                self._beyond.append((state, 0))
                self._place(block)
            else:
                block.load_state_dict(state)

    def _place(self, block: FragmentBlock) -> None:
        """Puts fragments that have come in the block, while it has room."""
        while self._beyond and block.room:
            state, first = self._beyond.popleft()
            first += block.append_columns(state, first)
            if first < _num_fragments(state):
                self._beyond.appendleft((state, first))

    @property
    def _num_steps_beyond(self) -> int:
        num_steps = len(self._beyond[0][0]["fields"][f.FRAGMENT]) - 1
        return num_steps * sum(_num_fragments(state) - first for state, first in self._beyond)

    def _look_at_block(self, sent: Sent) -> None:
        """Begins a block with the fragments that the one before had no room for; tells the actor when it is full."""
        if sent.command.do != FILL or sent.is_told:
            return
        behavior, number, _ = self._open[0]
        block = self.blocks[behavior][number]
        if not isinstance(block, FragmentBlock):
            return
        self._place(block)
        if not block.room:
            sent.is_told = True
            # Waited for: a block of an earlier state may have the same number.
            with suppress(api.RayFailure):
                api.get(self.worker.control("leave", self.number, block.sequence), STOP_SECONDS)

    def _stand(self, state: State) -> None:
        """Notes where an actor that is started again begins: new episodes after what has come."""
        has_fragments = "num_open" in state
        self._standing = (
            Command("restore", {"state": state}) if has_fragments else Command("begin_anew", {"states": [state]})
        )

    def send_again(self, cause: str) -> None:
        """Sends an actor that was started again everything that it needs to go on."""
        waiting = self._unanswered
        finished = 0
        # A block, or fragments, that it had finished are there, although it is not.
        with suppress(api.Lost):
            while finished < len(waiting) and self._reply_to(waiting[finished], 0.0) is not None:
                finished += 1
        self._same.clear()
        self.interrupt(self._is_stopping)
        for share in self.weights.shares.values():
            if isinstance(share.published, PublishedToActors):
                share.published.announce_to(self.worker)
        retired, standing = dict(self._retired), self._standing
        begun = [Command("restore_env_parameters", {"values": self._parameters})] if self._parameters else []
        begun += [*([standing] if standing is not None else []), *retired.values()]
        open_before = list(self._open)
        for command in begun:
            self.worker.reply(self._submit(command))
        self._standing, self._retired, self._open = standing, retired, open_before
        # Blocks that were lent with commands that are finished, and are not full: the next fill brings them again.
        first = True
        for sent in list(waiting)[finished:]:
            if sent.command.do == FILL and first:
                asked = sent.command.arguments["lend"]
                later = [lend for each in list(waiting)[finished:] for lend in each.command.arguments.get("lend", ())]
                kept = [lend for lend in open_before if lend not in later]
                sent.command = Command(FILL, {"lend": [*kept, *asked]})
                first = False
            again = self._submit(sent.command)
            with self._reading:
                sent.reference, sent.is_told, sent.is_read = again, False, False
                sent.brought.clear()
        lanes = getattr(self.env, "num_lanes", 0)
        fault = LaneFault(tuple(range(lanes)), "act", "a rollout actor died and was started again", cause)
        line = f"warning[W0540]: the rollout actor of collector {self.number} died and was started again: {cause}"
        self._news = FaultNews((*self._news.told, (fault, line)), self._news.restarts + 1)

    def interrupt(self, is_wanted: bool) -> None:
        self._is_stopping = is_wanted
        # Waited for: a later command must not find the request still there, nor a stop be late by many steps.
        with suppress(api.RayFailure):
            api.get(self.worker.control("interrupt", is_wanted), STOP_SECONDS)

    def _ask_for_pulse(self) -> None:
        now = time.monotonic()
        if self._pulse is not None and api.is_ready(self._pulse):
            with suppress(api.Lost):
                self.pulse = api.get(self._pulse)
            self._pulse = None
        if self._pulse is None and now - self._asked_at > PULSE_SECONDS:
            self.worker.cluster.require_alive()
            self._pulse, self._asked_at = self.worker.control("pulse"), now

    def give_up(self, seconds: float) -> QuintainError:
        return self.worker.give_up(seconds)

    def close(self) -> None:
        self.worker.close()


def _num_fragments(state: State) -> int:
    return int(np.shape(state["fields"][f.FRAGMENT])[1])
