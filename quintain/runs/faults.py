"""Reports environments that break: a line for the user, a record of each, a crash report of the first ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from quintain.envs.hosts.faults import LaneFault
from quintain.errors import EnvError, QuintainError
from quintain.runs.ranks.decisions import EndElsewhere, agree_on_end
from quintain.services.reporting.redaction import redact

if TYPE_CHECKING:
    from pathlib import Path

    from quintain.runs.run import Run
    from quintain.trainers.loop import Loop

MAX_REPORTS = 10
"""Maximum number of crash reports of faults per process."""


class FaultDesk:
    """Receives faults during a run."""

    def __init__(self, run: Run, loop: Loop) -> None:
        self.run = run
        self.loop = loop
        self.num_seen: Counter[str] = Counter()
        self.reports: list[tuple[LaneFault, Path]] = []

    def receive(self, fault: LaneFault, line: str) -> None:
        path = self._write_report(fault) if len(self.reports) < MAX_REPORTS else None
        detail = {"lanes": list(fault.lanes), "call": fault.call, "what": fault.as_error().message}
        self.run.log("env_fault", self.loop, code=fault.warning, detail={**detail, "report": path and str(path)})
        self.num_seen[fault.warning] += 1
        count = self.num_seen[fault.warning]
        # The first, then the tenth, the hundredth ...: enough to know, too few to hide everything else.
        if str(count).strip("0") == "1":
            self.run.writer.note(line if count == 1 else f"{line}; the {count}th of its kind")

    def final_error(self, spent: EnvError, first: LaneFault | None) -> EnvError:
        """Returns the error that ends the run, with the path of the first crash report."""
        path = next((path for fault, path in self.reports if fault == first), None)
        if path is None and first is not None:
            path = self._write_report(first)
        place = f" ({path})" if path else ""
        error = EnvError(f"{spent.message}{place}", code=spent.code, notes=spent.notes)
        error.__cause__ = spent.__cause__
        return _with_report(error, path)

    def error_elsewhere(self, end: EndElsewhere) -> EnvError:
        """Returns the error that ends the run because of another rank, whose traceback is written here."""
        message = f"rank {end.rank}: {end.message}"
        return _with_report(EnvError(message, code="E0503"), self._write(f"{end.trace.rstrip()}\n\n{message}\n"))

    def _write_report(self, fault: LaneFault) -> Path | None:
        # The user's own frames first: they are what the reader needs.
        text = f"{fault.trace.rstrip()}\n\n{fault.as_error().message}\n" if fault.trace else fault.as_error().message
        path = self._write(text)
        if path is not None:
            self.reports.append((fault, path))
        return path

    def _write(self, text: str) -> Path | None:
        directory = self.run.directory
        if directory is None or self.run.checkpoints is None:
            return None
        with suppress(QuintainError):  # a full disk must not turn a fault that was mended into the end of the run
            return directory.write_crash(redact(text))
        return None


def _with_report(error: EnvError, path: Path | None) -> EnvError:
    if path is not None:
        # The traceback of our own giving up would only stand beside the one that says why.
        vars(error)["crash_report"] = path
    return error


@contextmanager
def watching_environments(run: Run, loop: Loop) -> Iterator[None]:
    """Reports faults while the block runs; raises at its end if the budget of faults is spent."""
    desk = FaultDesk(run, loop)
    faults, supervisors = loop.faults, loop.supervisors
    if supervisors and run.directory is not None and run.checkpoints is not None:
        run.directory.folder(run.directory.worker_logs.name)
        for supervisor in supervisors:
            supervisor.log_to(run.directory.worker_logs)
    faults.listen(desk.receive, loop.stop)
    try:
        yield
        elsewhere = agree_on_end(loop)
        if faults.spent is not None:
            raise desk.final_error(faults.spent, faults.fatal)
        if elsewhere is not None:
            raise desk.error_elsewhere(elsewhere)
    finally:
        faults.deafen()
