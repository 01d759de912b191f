"""A collector in a rollout actor: commands become calls, and blocks come back through the object store.

A block is returned once into the object store, read from there without a copy, and copied once into the learner's
block. Weights are put once for each version, and read by all actors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from quintain.envs.hosts.faults import FaultNews, LaneFault
from quintain.errors import QuintainError
from quintain.placements.commands import FILL, RETIRE, Answer, Command, Lend
from quintain.placements.fleet import joined_news
from quintain.placements.plan import Blocks
from quintain.placements.processes import plain_arguments
from quintain.placements.ray import api
from quintain.placements.ray.worker import RolloutWorker
from quintain.placements.share import Share
from quintain.placements.snapshots import Label, PublishedWeights
from quintain.placements.wire import answer_from_json, as_arrays
from quintain.policies.base import Policy
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
class Sent:
    """A command without an answer, and the reference to its reply."""

    command: Command
    reference: api.Reference
    ends: list[Saved]
    """Lent blocks that are open no longer when it is done."""


class PutWeights:
    """The weights of lent blocks in the object store, put once for each version."""

    def __init__(self, shares: Mapping[str, Share]) -> None:
        self.shares = shares
        self._put: dict[tuple[str, int], api.Reference] = {}

    def of(self, lend: Lend) -> api.Reference:
        """Returns the reference to a block's weights; None where collectors take the newest."""
        snapshot = self.shares[lend.behavior].snapshots[lend.block]
        if not snapshot:
            return None
        key = (lend.behavior, lend.version)
        known = api.get(self._put[key]) if key in self._put else None
        # A policy may change without a new version, such as its statistics of observations.
        if known is None or not all(np.array_equal(known[name], value.numpy()) for name, value in snapshot.items()):
            self._put[key] = api.put(as_arrays(snapshot))
        mine = [each for each in self._put if each[0] == lend.behavior]
        # As many versions are lent at a time as there are blocks.
        for each in mine[: -1 - len(self.shares[lend.behavior].blocks)]:
            del self._put[each]
        return self._put[key]


class PublishedToActors(PublishedWeights):
    """The newest weights, put into the object store and announced to every actor."""

    def __init__(self, behavior: str, policy: Policy, workers: Sequence[RolloutWorker]) -> None:
        self.behavior = behavior
        self.workers = workers
        self.newest_put: tuple[Label, api.Reference] | None = None

    def publish(self, label: Label, policy: Policy) -> None:
        self.newest_put = label, api.put({name: value.numpy() for name, value in policy.state_dict().items()})
        for worker in self.workers:
            self.announce_to(worker)

    def announce_to(self, worker: RolloutWorker) -> None:
        """Gives an actor the newest weights; one that died gets them when it is started again."""
        if self.newest_put is not None:
            label, weights = self.newest_put
            with suppress(api.Lost):
                api.get(worker.control("publish", self.behavior, list(label), weights))


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
    ) -> None:
        """Takes its number and its parts of blocks; with `sends_blocks`, they are sent with every command."""
        self.worker = worker
        self.number = number
        self.env = env
        self.blocks = blocks
        self.weights = weights
        self.sends_blocks = sends_blocks
        self.supervisors: Sequence[Supervisor] = ()
        self.pulse = 0
        self._pulse: api.Reference | None = None
        self._asked_at = time.monotonic()
        self._unanswered: deque[Sent] = deque()
        self._is_stopping = False
        self._open: list[Saved] = []
        """Lent blocks that are not full, in order."""
        self._same: set[tuple[str, int]] = set()
        """Blocks of which the actor has what is here, so that they need not be sent."""
        self._standing: Command | None = None
        """Where an actor that is started again begins: a restored state, or new episodes after a full block."""
        self._parameters: State = {}
        self._retired: dict[str, Command] = {}
        self._news = FaultNews()
        worker.members.append(self)

    def send(self, command: Command) -> None:
        retired = command.arguments["behavior"] if command.do == RETIRE else None
        ends = [lend for lend in self._open if lend[0] == retired]
        self._unanswered.append(Sent(command, self._submit(command), ends))

    def _submit(self, command: Command) -> api.Reference:
        handle = self.worker.handle
        if command.do == FILL:
            lends = command.arguments["lend"]
            self._open += [lend for lend in lends if lend not in self._open]
            blocks = [self._block(Lend(*lend)) for lend in lends]
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
        elif command.do in ("set_env_parameters", "restore_env_parameters"):
            self._parameters |= arguments["values"]
        return handle.obey.remote(self.number, command.do, pack_value(arguments), *weights)

    def _block(self, lend: Lend) -> JsonObject:
        """Returns what the actor needs of a block: all, unless it has filled it before."""
        block, place = self.blocks[lend.behavior][lend.block], (lend.behavior, lend.block)
        self._retired.pop(lend.behavior, None)
        if self.sends_blocks or place not in self._same:
            self._same.add(place)
            found: JsonObject = as_arrays(block.state_dict())
            return found
        return {"sequence": block.sequence}

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        if self.worker.failure is not None:
            raise self.worker.failure
        sent = self._unanswered[0]
        if not api.is_ready(sent.reference, seconds):
            self._ask_for_pulse()
            return None
        try:
            words, data = self.worker.reply(sent.reference)
        except api.Lost as error:
            self.worker.start_again(error)
            return None
        self._unanswered.popleft()
        answer = answer_from_json(words)
        if sent.command.do == FILL:
            for behavior, number, state in data:
                self.blocks[behavior][number].load_state_dict(state)
            if answer.is_done and answer.report is not None:
                self.worker.num_deaths = 0
                self._standing = Command("begin_anew", {"states": [words["standing"]]})
                sent.ends += [next(lend for lend in self._open if lend[0] == name) for name in answer.report.filled]
        else:
            answer.value = unpack_value(data)
        if answer.is_done:
            self._open = [lend for lend in self._open if lend not in sent.ends]
        if self._news.told:
            answer.faults = joined_news([self._news, answer.faults])
            self._news = FaultNews()
        return answer

    def send_again(self, cause: str) -> None:
        """Sends an actor that was started again everything that it needs to go on."""
        waiting = self._unanswered
        finished = 0
        while finished < len(waiting) and _is_finished(waiting[finished].reference):
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
            sent.reference = self._submit(sent.command)
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


def _is_finished(reference: api.Reference) -> bool:
    """Whether a reply is there, although its actor is not."""
    if not api.is_ready(reference):
        return False
    try:
        api.get(reference)
    except api.RayFailure:
        return False
    return True
