"""Drives a sweep: starts its runs, so many at a time, follows their progress, and stops all of them after saving."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from quintain.runs.output import whole_budget
from quintain.runs.sent_parts import pack_parts
from quintain.runs.sweeps.directory import SweepDirectory
from quintain.runs.sweeps.plan import PlannedRun
from quintain.runs.sweeps.table import last_value
from quintain.services.files.run_directory import RunDirectory
from quintain.services.processes.child_environment import code_paths
from quintain.services.processes.signals import StopSignals
from quintain.services.processes.supervisor import Child, Supervisor
from quintain.services.reporting.digits import duration, measured
from quintain.services.reporting.printable import escape_control_characters

CHILD_MODULE = "quintain.runs.sweeps.child"
_LOOK_SECONDS = 0.5
_QUIET_SECONDS = 60.0
_MAX_TAIL_BYTES = 200_000


@dataclass
class Drive:
    """One session over the runs of a sweep."""

    place: SweepDirectory
    runs: Sequence[PlannedRun]
    """All runs of the sweep."""
    waiting: list[PlannedRun]
    """Runs that are not finished, in order."""
    jobs: int
    stream: TextIO | None
    """Where progress is shown; None for nowhere."""
    metric: str
    failures: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0
    """The exit code of the first run that failed."""
    running: dict[str, tuple[PlannedRun, Child, float]] = field(default_factory=dict)
    num_done: int = 0

    def train(self) -> StopSignals:
        """Trains all runs that are not finished; returns the signal that stopped the sweep, if any."""
        signals = StopSignals()
        is_stopping = False

        def stop(name: str) -> None:
            nonlocal is_stopping
            is_stopping = True

        self.num_done = len(self.runs) - len(self.waiting)
        # A run is the user's own program: it gets every variable, and gives its workers those that are no secrets.
        supervisor = Supervisor([CHILD_MODULE], os.environ)
        supervisor.log_to(self.place.logs.absolute())
        progress = SweepProgress(self)
        told: set[str] = set()
        with signals.watching(stop, lambda: "that of each run", self.tell, "every run has saved"):
            try:
                while self.running or (self.waiting and not is_stopping):
                    while self.waiting and len(self.running) < self.jobs and not is_stopping:
                        self._begin(self.waiting.pop(0), supervisor)
                    if is_stopping:
                        for run, child, _ in self.running.values():
                            if run.run_id not in told:
                                supervisor.signal(child, signal.SIGTERM)
                                told.add(run.run_id)
                    if not any(child.is_over for _, child, _ in self.running.values()):
                        channels = [child.channel.fileno() for _, child, _ in self.running.values()]
                        select.select([supervisor.report_descriptor, *channels], [], [], _LOOK_SECONDS)
                        supervisor.read_reports()
                    for run, child, since in list(self.running.values()):
                        if (answer := child.receive()) is not None or child.is_over:
                            self._end(run, child, answer or b"", since, supervisor, is_stopping)
                    progress.show()
            finally:
                progress.clear()
                supervisor.close()
        return signals

    def tell(self, text: str) -> None:
        """Prints a line, above the line of progress on a terminal."""
        if self.stream is not None:
            erase = "\r\x1b[2K" if self.stream.isatty() else ""
            self.stream.write(f"{erase}{escape_control_characters(text)}\n")
            self.stream.flush()

    def _begin(self, run: PlannedRun, supervisor: Supervisor) -> None:
        child = supervisor.start(run.run_id, f"{CHILD_MODULE}:train_run")
        child.send(
            {
                **code_paths(),
                "runs_dir": str(self.place.runs),
                "run_id": run.run_id,
                "planned": str(self.place.planned / f"{run.run_id}.yaml"),
                "parts": pack_parts(run.run_file),
            }
        )
        self.running[run.run_id] = run, child, time.monotonic()

    def _end(
        self, run: PlannedRun, child: Child, answer: bytes, since: float, supervisor: Supervisor, is_stopping: bool
    ) -> None:
        """Records how a run ended: by its own report, or by the end of its process."""
        supervisor.await_end(child, 5.0)
        answer = answer or child.receive() or b""
        report = json.loads(answer) if answer else {}
        state = report.get("state", "stopped" if is_stopping else "failed")
        seconds = duration(time.monotonic() - since)
        self.num_done += state in ("finished", "failed")
        head = f"[{self.num_done}/{len(self.runs)}] {run.run_id}"
        if state == "finished":
            value = last_value(RunDirectory(self.place.runs / run.run_id), self.metric)
            shown = f"{self.metric} {measured(value)}" if value is not None else f"no {self.metric}"
            self.tell(f"{head}  finished  {shown}  {seconds}")
            was_failed = self.failures.pop(run.run_id, None) is not None
        elif state == "failed":
            line = report.get("line") or f"its process {child.describe_end()}; see {self.place.logs}/{run.run_id}.log"
            self.failures[run.run_id], was_failed = line, True
            self.exit_code = self.exit_code or int(report.get("exit_code") or 1)
            self.tell(f"{head}  failed  {line}")
        else:
            self.tell(f"{run.run_id}  stopped after {seconds}; it goes on from there")
            was_failed = False
        if was_failed:
            self.place.write_failures(self.failures)
        if child.is_over:
            # Not by the supervisor, which would end its server with the last child that is known to run.
            child.close()
        else:
            supervisor.stop([child], first=None)
        del self.running[run.run_id]


class SweepProgress:
    """One line on the progress of all runs and the time left: kept in place on a terminal, once a minute elsewhere."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.begun_at = self.shown_at = time.monotonic()
        self.before = self.fraction()

    def fraction(self) -> float:
        """Returns the part of the whole sweep that is done; every run counts the same."""
        drive, done = self.drive, 0.0
        open_runs = {run.run_id for run in drive.waiting} | drive.running.keys()
        for run in drive.runs:
            # A run that was half done counts as that, whether it waits or runs.
            done += part_done(run, drive.place) if run.run_id in open_runs else 1.0
        return done / len(drive.runs)

    def show(self) -> None:
        stream, now = self.drive.stream, time.monotonic()
        if stream is None or now - self.shown_at < (_LOOK_SECONDS if stream.isatty() else _QUIET_SECONDS):
            return
        self.shown_at = now
        done, drive = self.fraction(), self.drive
        line = f"{drive.num_done} of {len(drive.runs)} runs done, {len(drive.running)} running, {done:.0%}"
        if done > self.before:
            left = (now - self.begun_at) * (1.0 - done) / (done - self.before)
            line += f", about {duration(left)} left"
        if stream.isatty():
            stream.write(f"\r\x1b[2K{line[: shutil.get_terminal_size().columns - 1]}")
            stream.flush()
        else:
            drive.tell(line)

    def clear(self) -> None:
        stream = self.drive.stream
        if stream is not None and stream.isatty():
            stream.write("\r\x1b[2K")
            stream.flush()


def part_done(run: PlannedRun, place: SweepDirectory) -> float:
    """Returns the part of a run's budget that its last row of metrics has reached."""
    row = _last_row(RunDirectory(place.runs / run.run_id))
    budget = whole_budget(run.run_file)
    parts = [
        float(row.get(name, 0)) / most
        for name, most in (("step", budget.env_steps), ("time/iterations", budget.updates))
        if most
    ]
    return min(1.0, max(parts, default=0.0))


def _last_row(directory: RunDirectory) -> Mapping[str, float]:
    """Returns the last whole row of a metrics file, without reading all of it."""
    try:
        with directory.metrics.open("rb") as file:
            file.seek(max(0, directory.metrics.stat().st_size - _MAX_TAIL_BYTES))
            lines = file.read(_MAX_TAIL_BYTES).split(b"\n")
        row = json.loads(lines[-2])
    except (OSError, ValueError, IndexError, RecursionError):
        return {}
    is_row = isinstance(row, dict)
    return {name: value for name, value in row.items() if isinstance(value, int | float)} if is_row else {}
