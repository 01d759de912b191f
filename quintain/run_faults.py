"""What a run makes of environments that break: a line for the user, a record of each, a report of the first ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from quintain.envs.faults import LaneFault
from quintain.errors import EnvError, QuintainError
from quintain.services import atomic
from quintain.services.redaction import redact

if TYPE_CHECKING:
    from pathlib import Path

    from quintain.run import Run
    from quintain.trainers.base import Trainer

MAX_REPORTS = 10
"""Faults of one process that get a report of their own; the thousandth would say what the first did."""


class FaultDesk:
    """Receives faults while a run goes on."""

    def __init__(self, run: Run, trainer: Trainer) -> None:
        self.run = run
        self.trainer = trainer
        self.num_seen: Counter[str] = Counter()
        self.reports: list[tuple[LaneFault, Path]] = []

    def receive(self, fault: LaneFault, line: str) -> None:
        path = self._write_report(fault)
        detail = {"lanes": list(fault.lanes), "call": fault.call, "what": fault.as_error().message}
        self.run.log("env_fault", self.trainer, code=fault.warning, detail={**detail, "report": path and str(path)})
        self.num_seen[fault.warning] += 1
        count = self.num_seen[fault.warning]
        # The first, then the tenth, the hundredth ...: enough to know, too few to hide everything else.
        if str(count).strip("0") == "1":
            self.run.writer.note(line if count == 1 else f"{line}; the {count}th of its kind")

    def final_error(self, spent: EnvError, first: LaneFault | None) -> EnvError:
        """Returns the error that ends the run, with the place of the first report in it."""
        path = next((path for fault, path in self.reports if fault == first), None)
        error = EnvError(f"{spent.message} ({path})" if path else spent.message, code=spent.code, notes=spent.notes)
        error.__cause__ = spent.__cause__
        if path is not None:
            # The traceback of our own giving up would only stand beside the one that says why.
            vars(error)["crash_report"] = path
        return error

    def _write_report(self, fault: LaneFault) -> Path | None:
        directory = self.run.directory
        if directory is None or self.run.checkpoints is None or len(self.reports) >= MAX_REPORTS:
            return None
        # The user's own frames first: they are what the reader needs.
        text = f"{fault.trace.rstrip()}\n\n{fault.as_error().message}\n" if fault.trace else fault.as_error().message
        with suppress(QuintainError):  # a full disk must not turn a fault that was mended into the end of the run
            path = directory.write_crash(redact(text))
            self.reports.append((fault, path))
            return path
        return None


def agree_on_end(trainer: Trainer) -> str:
    """Returns to rank 0 why another rank's environments ended the run, if they did; all ranks call it."""
    if trainer.world.size == 1:
        return ""
    own = "" if trainer.faults.spent is None else trainer.faults.spent.message
    said = [data.decode() for data in trainer.world.collect(own.encode())]
    return next((f"rank {rank}: {text}" for rank, text in enumerate(said) if text), "")


@contextmanager
def watching_environments(run: Run, trainer: Trainer) -> Iterator[None]:
    """Tells the user of faults while the block runs; raises at its end if environments broke too often to go on."""
    desk = FaultDesk(run, trainer)
    faults, team = trainer.faults, trainer.hosting.team
    supervisors = [*([] if team is None else [team.supervisor]), *trainer.source.supervisors]
    if supervisors and run.directory is not None and run.checkpoints is not None:
        atomic.make_directory(run.directory.worker_logs)
        for supervisor in supervisors:
            supervisor.log_to(run.directory.worker_logs)
    faults.listen(desk.receive, trainer.stop)
    try:
        yield
        elsewhere = agree_on_end(trainer)
        if faults.spent is not None:
            raise desk.final_error(faults.spent, faults.fatal)
        if elsewhere:
            raise EnvError(elsewhere, code="E0503")
    finally:
        faults.deafen()
