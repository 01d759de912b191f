"""Acts in other threads of the learner's process, one for each collector.

Acting and learning run in parallel wherever the interpreter's lock is free: in torch's kernels, in simulators that
release it, and while workers step.
"""

from __future__ import annotations

import queue
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from quintain.errors import CollectorDied, QuintainError
from quintain.placements.actor import Actor
from quintain.placements.ahead import AheadSource, SourceParts
from quintain.placements.commands import Answer, Command
from quintain.placements.local import Groups
from quintain.placements.plan import ActingPlan, Blocks
from quintain.placements.remote_errors import RemoteTraceback
from quintain.placements.settings import ThreadsSettings
from quintain.policies.base import Policy
from quintain.rollouts.source import BehaviorListener
from quintain.rollouts.sync_collector import never
from quintain.services.processes.supervisor import Supervisor
from quintain.services.user_code import as_part_error

if TYPE_CHECKING:
    from quintain.typing import TrainingEnv

    Inbox = queue.Queue[Command | None]
    Outbox = queue.Queue[Answer | BaseException]

_MAX_WAITING = 1000
_END_SECONDS = 5.0
_LOOK_SECONDS = 3600.0


class ThreadsPlacement:
    """Makes the environment in this process, and steps it in a thread."""

    def __init__(self, settings: ThreadsSettings, plan: ActingPlan) -> None:
        self.plan = plan
        # Not the run's own: evaluations use that at the same time.
        self.groups = Groups(plan, has_own_hosting=True)
        self.env = self.groups.env

    def build_source(
        self, policies: Mapping[str, Policy], on_episodes: BehaviorListener, *, starts_fresh: bool
    ) -> tuple[AheadSource, Blocks]:
        remote, shares = self.groups.build(policies, CollectorThread, starts_fresh=starts_fresh, has_copies=True)
        source = AheadSource(SourceParts(remote, shares, self.plan.hosting.faults, on_episodes))
        return source, {name: share.blocks for name, share in shares.items()}


class CollectorThread:
    """Runs an actor in a thread that ends with this object, or with the process."""

    def __init__(self, actor: Actor, supervisors: Sequence[Supervisor]) -> None:
        self.env: TrainingEnv = actor.collector.env
        self._actor = actor
        self.supervisors = supervisors
        self._inbox: Inbox = queue.Queue(maxsize=_MAX_WAITING)
        self._outbox: Outbox = queue.Queue(maxsize=_MAX_WAITING)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        # A stuck environment must not keep the process from ending.
        self._thread = threading.Thread(
            target=_work,
            args=(actor, self._inbox, self._outbox, self._stop, torch.get_num_threads()),
            name="collector",
            daemon=True,
        )
        self._thread.start()
        self._end = weakref.finalize(self, _end, self._inbox, self._stop)

    def send(self, command: Command) -> None:
        self._inbox.put(command, timeout=_END_SECONDS)

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        if self._failure is None:
            try:
                answer = self._outbox.get(timeout=seconds)
            except queue.Empty:
                if not self._thread.is_alive():
                    raise CollectorDied(
                        "the trainer was closed, so its collector does nothing more", code="E0540"
                    ) from None
                return None
            if isinstance(answer, Answer):
                return answer
            self._failure = answer
        raise _explained(self._failure)

    def interrupt(self, is_wanted: bool) -> None:
        if is_wanted:
            self._stop.set()
        else:
            self._stop.clear()

    @property
    def pulse(self) -> int:
        return self._actor.pulse

    def give_up(self, seconds: float) -> QuintainError:
        """Abandons the thread: a thread cannot be killed, and ends with the process."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        failure = CollectorDied(
            f"the collector's thread did nothing for {seconds:g} s. Continue from the last checkpoint with: quintain "
            f"resume",
            code="E0542",
        )
        failure.__cause__ = RemoteTraceback("".join(traceback.format_stack(frame))) if frame else None
        self._failure = failure
        return failure

    def close(self) -> None:
        self._end()
        # One that was given up will not end now.
        self._thread.join(timeout=0.0 if isinstance(self._failure, CollectorDied) else _END_SECONDS)
        if not self._thread.is_alive():
            self.env.close()


def _work(actor: Actor, inbox: Inbox, outbox: Outbox, stop: threading.Event, num_threads: int) -> None:
    """The thread's main function; an error that ends it is its last answer."""
    torch.set_num_threads(num_threads)
    while True:
        try:
            command = inbox.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        if command is None:
            return
        try:
            while (answer := actor.obey(command, stop.is_set)) is None:
                pass
        except BaseException as error:
            outbox.put(error, timeout=_END_SECONDS)
            return
        outbox.put(answer, timeout=_END_SECONDS)


def _end(inbox: Inbox, stop: threading.Event) -> None:
    stop.set()
    inbox.put(None, timeout=_END_SECONDS)


def _explained(failure: BaseException) -> BaseException:
    """Returns the error that ends the run; foreign exceptions become a QuintainError with the original as its cause."""
    if isinstance(failure, QuintainError | MemoryError | OSError):
        return failure
    first = str(failure).strip().partition("\n")[0]
    error = as_part_error(failure) or QuintainError(
        f"the collector's thread failed: {type(failure).__name__}: {first}", code="E0102"
    )
    error.__cause__ = failure
    return error
