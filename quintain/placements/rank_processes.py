"""Starts the other ranks of a run as processes on this machine, reports why one ended, and leaves none behind."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.errors import QuintainError, RankError
from quintain.placements.remote_errors import error_from_json, error_to_json

if TYPE_CHECKING:
    from quintain.core.process_group import GlooGroup

START_SECONDS = 300.0
"""Timeout for a rank to start and import what it needs."""
LOOK_SECONDS = 0.01
"""Interval at which rank 0 looks whether all ranks have started."""
END_SECONDS = 5.0
"""Timeout for a rank to end by itself after the run."""
CAUSE_SECONDS = 3.0
"""Time to look for the cause after a rank was lost."""

TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to all processes of a command; rank 0 decides what they mean."""

RankEntry = Callable[[int, int, str, str, Any], None]
"""Entry point of a rank: takes its rank, the number of ranks, the rendezvous, code of the user's script, and the
connection for its report."""


class RankProcesses:
    """Ranks 1 and up; the process that makes this object is rank 0."""

    def __init__(self, size: int, entry: RankEntry, code: str = "") -> None:
        self.size = size
        self.folder = Path(tempfile.mkdtemp(prefix="quintain-ranks-"))
        # Forked children would share threads and locks with torch; spawned ones begin from nothing.
        context = multiprocessing.get_context("spawn")
        # Its start unblocks the signals that are blocked below.
        resource_tracker.ensure_running()
        self.processes: list[Any] = []
        self.reports: list[Connection] = []
        for rank in range(1, size):
            receiver, sender = context.Pipe(duplex=False)
            # Not daemonic: a rank may have environment workers of its own.
            process = context.Process(target=entry, args=(rank, size, self._place, code, sender), name=f"rank {rank}")
            # Blocked in the new process until it has settled in: it would print a traceback while it imports.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            sender.close()
            self.processes.append(process)
            self.reports.append(receiver)

    @property
    def _place(self) -> str:
        return str(self.folder / "meeting")

    def meet(self) -> GlooGroup:
        """Forms the process group with the other ranks; raises if one of them ends before it is formed."""
        deadline = time.monotonic() + START_SECONDS
        while not all(_sign(self._place, rank).exists() for rank in range(1, self.size)):
            # A report is ready when a rank has failed, and also when it ended without one.
            if wait(self.reports, LOOK_SECONDS):
                raise _not_met("ended")
            if time.monotonic() > deadline:
                raise _not_met(f"did not start within {START_SECONDS:g} s")
        world = self._formed()
        # Everyone is connected by now: nothing stays behind in the temporary folder, however this process ends.
        shutil.rmtree(self.folder, ignore_errors=True)
        return world

    def _formed(self) -> GlooGroup:
        """Forms the group in a thread, because torch waits for a rank that died meanwhile until its longest timeout."""
        found: list[GlooGroup | BaseException] = []
        is_done, done = multiprocessing.Pipe(duplex=False)

        def form() -> None:
            try:
                found.append(meet_on_this_machine(0, self.size, self._place))
            except BaseException as error:
                found.append(error)
            done.close()

        threading.Thread(target=form, daemon=True).start()
        with is_done:
            if is_done not in wait([*self.reports, is_done]):
                raise _not_met("ended")
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    def stop(self) -> None:
        """Forwards a request to stop to the other ranks."""
        for process in self.processes:
            with suppress(OSError, ValueError, TypeError):
                os.kill(process.pid, signal.SIGTERM)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Replaces the error "another rank ended" by its cause."""
        try:
            yield
        except RankError as error:
            cause = self._cause()
            if cause is None:
                raise
            raise cause from cause.__cause__ or error

    def close(self) -> None:
        """Waits for the other ranks to end, and ends those that do not."""
        deadline = time.monotonic() + END_SECONDS
        for process in self.processes:
            process.join(timeout=max(0.0, deadline - time.monotonic()))
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join(timeout=END_SECONDS)
        for report in self.reports:
            report.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kills the other ranks."""
        for process in self.processes:
            process.kill()
        self.close()

    def _cause(self) -> QuintainError | None:
        """Returns the error of the rank that ended first, or a description of its end."""
        deadline = time.monotonic() + CAUSE_SECONDS
        silent: QuintainError | None = None
        for rank, (process, report) in enumerate(zip(self.processes, self.reports, strict=True), start=1):
            about = _read(report, max(0.0, deadline - time.monotonic()))
            # One that too only lost another is not the cause.
            if about is not None and about["code"] != RankError.default_code:
                return error_from_json(about, f"rank {rank}: ")
            process.join(timeout=max(0.0, deadline - time.monotonic()))
            if about is None and process.exitcode:
                silent = silent or _end_without_report(rank, process.exitcode)
        return silent


def meet_on_this_machine(rank: int, size: int, place: str) -> GlooGroup:
    """Forms a process group of ranks on this machine, over the loopback interface only."""
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # public, and not in torch's own list

    from quintain.core.process_group import GlooGroup

    _sign(place, rank).touch()
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    try:
        # A file instead of a port: nobody else on the machine can write to the folder it is in.
        world = GlooGroup(rank, size, store=FileStore(place, size))
    finally:
        if before is None:
            del os.environ["GLOO_SOCKET_IFNAME"]
        else:
            os.environ["GLOO_SOCKET_IFNAME"] = before
    # Past this point nobody looks at the file any more, so that rank 0 may remove it.
    world.barrier()
    return world


def _sign(place: str, rank: int) -> Path:
    """Returns the file by which a rank says that it has imported everything and waits for the others."""
    return Path(place).with_name(f"here-{rank}")


def _not_met(how: str) -> RankError:
    return RankError(f"rank 0 waited for another rank, which {how} before all were connected")


def settle_in(rank: int) -> None:
    """Makes a rank end with its parent, ignore the keyboard, and leave standard output to rank 0."""
    parent = multiprocessing.parent_process()
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if parent is None or os.getppid() != parent.pid:
        os._exit(1)  # it died before it could take this process with it
    os.setsid()
    for number in TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL_SIGNALS)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until training begins, which rank 0 then does not
    os.dup2(2, 1)


def send_report(report: Connection, error: QuintainError, traceback: str) -> None:
    """Sends rank 0 the reason why this rank ends."""
    with suppress(OSError):
        report.send_bytes(json.dumps(error_to_json(error, traceback)).encode())


def _read(report: Connection, timeout: float) -> dict[str, Any] | None:
    """Returns a rank's report; None if it sent none."""
    try:
        about: dict[str, Any] | None = (
            json.loads(report.recv_bytes(maxlength=1_000_000)) if report.poll(timeout) else None
        )
    except (EOFError, OSError, ValueError):
        return None
    return about


def _end_without_report(rank: int, exit_code: int) -> RankError:
    how = f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with exit code {exit_code}"
    return RankError(
        f"rank {rank} {how}, and the others cannot learn without it",
        notes=("help: continue from the last checkpoint with: quintain resume",),
    )
