"""Waits for workers until each has answered, has died, or has timed out.

A worker marks each lane's current call in shared memory. So a lane that hangs can be named, and several slow lanes are
not mistaken for one that hangs.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quintain.envs.hosts.faults import DIED, HUNG, LaneFault
from quintain.envs.hosts.hosting import WorkerTeam
from quintain.envs.hosts.lane_rows import CREATING, RESETTING, STEPPING
from quintain.envs.hosts.worker_handle import WorkerHandle
from quintain.services.processes.supervisor import PATIENCE_SECONDS

if TYPE_CHECKING:
    from quintain.typing import Array

_LAST_WORDS_SECONDS = 1.0
_CALLS = {STEPPING: "step", RESETTING: "reset", CREATING: "create"}


@dataclass
class Look:
    """The marks of a worker's lanes, and since when they are the same."""

    since: float
    marks: list[int]


class WorkerWatch:
    """Timeouts of an environment's workers."""

    def __init__(self, name: str, team: WorkerTeam, marks: Array) -> None:
        self.name = name
        self.settings = team.settings
        self.supervisor = team.supervisor
        self.marks = marks
        """The mark of each lane."""

    def gather(self, asked: Sequence[WorkerHandle], found: Sequence[LaneFault] = ()) -> list[LaneFault]:
        """Waits until every given worker has answered, has died, or has timed out."""
        faults = list(found)
        waiting = Waiting(self)
        for worker in asked:
            if worker.child is not None:
                waiting.add(worker)
        while waiting.workers:
            waiting.poll(PATIENCE_SECONDS, faults)
        # In the order of lanes, not of arrival: records of two runs can be compared.
        return sorted(faults, key=lambda fault: fault.lanes)

    def marks_of(self, worker: WorkerHandle) -> list[int]:
        marks: list[int] = self.marks[worker.lanes].tolist()
        return marks

    def is_overdue(self, worker: WorkerHandle, look: Look) -> bool:
        now, marks = time.monotonic(), self.marks_of(worker)
        if marks != look.marks:
            look.since, look.marks = now, marks
        return now - look.since > self._limit(marks)

    def _limit(self, marks: Sequence[int]) -> float:
        is_stepping = any(mark & 3 == STEPPING for mark in marks)
        return self.settings.step_timeout_seconds if is_stepping else self.settings.reset_timeout_seconds

    def lose(self, worker: WorkerHandle) -> LaneFault:
        """Removes a worker that has died or sent invalid messages."""
        child = worker.child
        assert child is not None
        is_dead = self.supervisor.await_end(child, _LAST_WORDS_SECONDS)
        stack = child.stack()
        if not is_dead:
            self.supervisor.stop([child])
        ending = child.describe_end() if is_dead else "left the conversation"
        trace = "\n".join(filter(None, (stack, child.last_output)))
        if child.exit_code == os.EX_OSERR and not stack:
            ending += f" ({child.last_output.strip()})"
        where = self._place(worker)
        return self._dismissed(worker, f"env {self.name!r}: {worker} {ending}{where}", trace, "E0507", DIED)

    def give_up(self, worker: WorkerHandle) -> LaneFault:
        """Kills a worker that does not answer, after taking its stack trace."""
        child = worker.child
        assert child is not None
        limit = self._limit(self.marks_of(worker))
        what = f"env {self.name!r}: {worker} gave no answer{self._place(worker)} for {limit:g} s"
        trace = self.supervisor.stack_of(child)
        self.supervisor.stop([child])
        return self._dismissed(worker, what, trace, "E0508", HUNG)

    def _dismissed(self, worker: WorkerHandle, what: str, trace: str, code: str, warning: str) -> LaneFault:
        assert worker.child is not None
        worker.child.close()
        worker.child = None
        worker.num_owed = 0
        call = "step" if worker.call == "step" else "reset"
        return LaneFault(tuple(worker.lanes), call, what, "", trace, code, warning)

    def _place(self, worker: WorkerHandle) -> str:
        """Names the call that a worker was in, from its marks."""
        for lane, mark in zip(worker.lanes, self.marks_of(worker), strict=True):
            if call := _CALLS.get(mark & 3):
                return f" in {call}() on lane {worker.first_lane + lane}"
        return ""


class Waiting:
    """Workers that owe an answer; others may be added at any time."""

    def __init__(self, watch: WorkerWatch) -> None:
        self.watch = watch
        self.workers: dict[int, WorkerHandle] = {}
        """By the descriptor of the connection."""
        self.looks: dict[WorkerHandle, Look] = {}
        self.poller = select.poll()
        self.poller.register(watch.supervisor.report_descriptor, select.POLLIN)
        self.next_look = time.monotonic() + PATIENCE_SECONDS

    def add(self, worker: WorkerHandle) -> None:
        assert worker.child is not None
        descriptor = worker.child.channel.fileno()
        self.workers[descriptor] = worker
        self.looks[worker] = Look(time.monotonic(), self.watch.marks_of(worker))
        self.poller.register(descriptor, select.POLLIN)

    def poll(self, seconds: float, faults: list[LaneFault]) -> list[WorkerHandle]:
        """Waits for an answer, at most so long; returns the workers that have answered, have died, or are overdue."""
        watch, finished = self.watch, []
        ready = {descriptor for descriptor, _ in self.poller.poll(seconds * 1000.0)}
        if not ready <= self.workers.keys():
            watch.supervisor.read_reports()
        is_time_to_look = time.monotonic() >= self.next_look
        for descriptor, worker in list(self.workers.items()):
            assert worker.child is not None
            is_over = worker.child.is_over
            # What it said before it died still counts.
            goes_on = worker.read(faults) if is_over or descriptor in ready else True
            if worker.num_owed and (is_over or not goes_on):
                faults.append(watch.lose(worker))
            elif worker.num_owed and is_time_to_look and watch.is_overdue(worker, self.looks[worker]):
                faults.append(watch.give_up(worker))
            if not worker.num_owed:
                self.poller.unregister(descriptor)
                del self.workers[descriptor]
                finished.append(worker)
        if is_time_to_look:
            self.next_look = time.monotonic() + PATIENCE_SECONDS
        return finished
