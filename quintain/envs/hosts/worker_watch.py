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
class _Look:
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
        waiting = {worker.child.channel.fileno(): worker for worker in asked if worker.child is not None}
        looks = {worker: _Look(time.monotonic(), self._marks(worker)) for worker in asked}
        poller = select.poll()
        for descriptor in (*waiting, self.supervisor.report_descriptor):
            poller.register(descriptor, select.POLLIN)
        next_look = time.monotonic() + PATIENCE_SECONDS
        while waiting:
            ready = {descriptor for descriptor, _ in poller.poll(PATIENCE_SECONDS * 1000.0)}
            if not ready <= waiting.keys():
                self.supervisor.read_reports()
            is_time_to_look = time.monotonic() >= next_look
            for descriptor, worker in list(waiting.items()):
                assert worker.child is not None
                is_over = worker.child.is_over
                # What it said before it died still counts.
                goes_on = worker.read(faults) if is_over or descriptor in ready else True
                if worker.num_owed and (is_over or not goes_on):
                    faults.append(self.lose(worker))
                elif worker.num_owed and is_time_to_look and self._is_overdue(worker, looks[worker]):
                    faults.append(self._give_up(worker))
                if not worker.num_owed:
                    poller.unregister(descriptor)
                    del waiting[descriptor]
            if is_time_to_look:
                next_look = time.monotonic() + PATIENCE_SECONDS
        # In the order of lanes, not of whoever was quicker: records of two runs can be compared.
        return sorted(faults, key=lambda fault: fault.lanes)

    def _marks(self, worker: WorkerHandle) -> list[int]:
        marks: list[int] = self.marks[worker.lanes].tolist()
        return marks

    def _is_overdue(self, worker: WorkerHandle, look: _Look) -> bool:
        now, marks = time.monotonic(), self._marks(worker)
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

    def _give_up(self, worker: WorkerHandle) -> LaneFault:
        """Kills a worker that does not answer, after taking its stack trace."""
        child = worker.child
        assert child is not None
        limit = self._limit(self._marks(worker))
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
        for lane, mark in zip(worker.lanes, self._marks(worker), strict=True):
            if call := _CALLS.get(mark & 3):
                return f" in {call}() on lane {worker.first_lane + lane}"
        return ""
