"""One run: a loop with its directory, output, checkpoints and signals; without a directory, only output."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.core.budget import Budget
from quintain.core.trust import importing_only
from quintain.core.versions import facts
from quintain.errors import NonFiniteError, QuintainError, ResourceError, RunDirectoryError
from quintain.runs.artifacts import Artifacts, artifacts_of
from quintain.runs.faults import watching_environments
from quintain.runs.output import CommandHints, checkpoint_facts, env_name, header_of, summary_of, whole_budget
from quintain.runs.ranks.decisions import decide, is_commit_due, is_report_due
from quintain.runs.ranks.lead import Ranks
from quintain.runs.ranks.state import broadcast_state, gather_state, joint_exactness
from quintain.runs.restore import num_ranks_in, require_same_settings, restore_rank
from quintain.runs.slow_start import telling_of_first_update
from quintain.services.checkpoints.catalog import Checkpoint, load, verify
from quintain.services.checkpoints.manager import CheckpointManager
from quintain.services.files.run_directory import RunDirectory, Status
from quintain.services.files.run_names import default_run_id
from quintain.services.processes.signals import StopSignals
from quintain.services.reporting.event_log import EventLog
from quintain.services.reporting.metrics_file import MetricsFile
from quintain.services.reporting.writers import RunSummary, Writer, WriterGroup

if TYPE_CHECKING:
    from quintain.settings.tree import RunFile
    from quintain.trainers.loop import Loop

MAX_FAILED_COMMITS = 3


class Run:
    """The loop's `Session`: everything around training."""

    def __init__(
        self,
        run_file: RunFile,
        writers: list[Writer],
        directory: RunDirectory | None = None,
        *,
        resources: ExitStack | None = None,
        ranks: Ranks | None = None,
        runs_dir: Path = Path("runs"),
        is_kept: bool = False,
        has_objects: bool = False,
        is_quiet: bool = False,
    ) -> None:
        """Opens a directory at the start if one is given or `is_kept`; otherwise when one is needed.

        A run that `has_objects` without a name in settings cannot be resumed from the command line.
        """
        self.run_file = run_file
        self.runs_dir = (runs_dir if directory is None else directory.path.parent).absolute()
        self.shown_runs_dir = runs_dir
        self.is_kept = is_kept
        self.take_over: Callable[[], RunDirectory] | None = None
        """Opens the directory of the run that is continued, when it is needed."""
        self.writer = WriterGroup(writers, is_quiet=is_quiet)
        self.signals = StopSignals(run_file.run.grace_seconds)
        self.directory = directory
        self.has_objects = has_objects
        self.commands = CommandHints(directory, run_file, has_objects=has_objects)
        self.checkpoints: CheckpointManager | None = None
        self.metrics: MetricsFile | None = None
        self.event_log: EventLog | None = None
        self.artifacts: Artifacts | None = None
        self.last: Checkpoint | None = None
        self.saved_updates = -1
        """The updates that are in the last checkpoint; a loop without an environment has no other measure."""
        self.last_commit_time, self.failed_commits = time.monotonic(), 0
        self.num_faults = 0
        """Faults of all ranks, as far as they were reported."""
        self.state = "running"
        self.resources = resources or ExitStack()
        self.ranks = ranks or Ranks(run_file, starts_processes=False)
        self.resources.callback(self.ranks.close)
        self.resources.enter_context(importing_only(run_file.permitted))
        self.is_header_shown = False

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether there is a directory for checkpoints from the start."""
        return self.directory is not None or self.is_kept

    # -- before training ------------------------------------------------------------------------------------------

    def show_header(self, *, start_step: int = 0, start_updates: int = 0, budget: Budget | None = None) -> None:
        """Prints the header, once; needs no torch, so it can come before slow imports."""
        if not self.is_header_shown:
            self.is_header_shown = True
            budget = budget or whole_budget(self.run_file)
            self.writer.open(header_of(self.run_file, self.directory, (start_step, start_updates), budget))

    def open_directory(self, directory: RunDirectory) -> None:
        """Removes leftovers of a killed process and opens the files; the caller holds the run's lock in `resources`."""
        self.directory = directory
        self.commands = CommandHints(directory, self.run_file, has_objects=self.has_objects)
        kept = self.run_file.run.checkpoint
        self.checkpoints = CheckpointManager(directory.checkpoints, kept.keep, kept.keep_every_updates)
        for warning in self.checkpoints.sweep():
            self.writer.note(warning)
        self.metrics = MetricsFile(directory.metrics, warn=self.writer.note)
        self.resources.callback(self.metrics.close)
        self.event_log = EventLog(directory.events)
        self.resources.callback(self.event_log.close)
        self.artifacts = artifacts_of(self.run_file, directory)

    def write_settings(self) -> None:
        assert self.directory is not None
        self.directory.write_config(self.run_file.to_yaml())
        self.directory.write_environment(facts(self.run_file.run.threads))

    def restore(self, loop: Loop, checkpoint: Checkpoint, anew_because: str = "") -> None:
        """Restores a checkpoint into a new loop and drops the metric rows after it.

        With a reason to begin `anew`, lanes begin new episodes, and everything else goes on.
        """
        loaded = load(checkpoint.path)
        loop.require_fit(loaded.manifest.about)
        if loop.world.size > 1:
            broadcast_state(loop.world, loaded.state)
        restore_rank(loop, loaded.state, anew=bool(anew_because))
        loop.set_budget(self.run_file.budget)
        self.go_on_from(loop, checkpoint, anew_because)
        exactness = self.begin_together(loop)
        if (num_ranks := num_ranks_in(loaded.state)) != loop.world.size:
            exactness = f"statistical: {num_ranks} ranks became {loop.world.size}, so all lanes begin new episodes"
        self.show_determinism(exactness)

    def go_on_from(self, loop: Loop, checkpoint: Checkpoint, anew_because: str) -> None:
        """Makes a checkpoint the last of the run: a later one, and the metric rows after it, are of another branch."""
        assert self.directory is not None
        assert self.metrics is not None
        assert self.checkpoints is not None
        self.last, self.saved_updates = checkpoint, loop.progress.updates
        # Going back is a new branch: until it is committed, the next resume would take up the old one.
        unclosed = self.directory.describe_unclosed(checkpoint.step)
        is_older = checkpoint.commit != self.checkpoints.latest(lambda text: None).commit
        if decide(loop.world, is_older or bool(anew_because)):
            self._commit(loop)
        # Not after the checkpoint's step: one taken before its cycle's row was written must write that row again.
        self.metrics.truncate_after(loop.stats.last_step, loop.stats.last_updates)
        if unclosed is not None:
            self.writer.note(unclosed)
        self.log("resumed", loop, detail={"checkpoint": checkpoint.name})
        if anew_because:
            text = f"{anew_because}, so this resume is not exact: all lanes begin new episodes, and the rest goes on"
            self.warn(loop, "W0402", text)

    def begin_together(self, loop: Loop) -> str:
        """Gives all ranks the same weights and returns the exactness of a resume."""
        loop.share()
        return joint_exactness(loop)

    def show_determinism(self, exactness: str) -> None:
        """Prints the exactness of a resume, as soon as the environment is known."""
        if exactness == "exact":
            self.writer.note("determinism L3: stopped or killed anywhere, a resume ends with the same results")
        else:
            self.writer.note(f"warning[W0402]: determinism L1: a resume is not exact; {exactness}")

    def begin_again(self) -> None:
        """Restarts a run that ended before its first checkpoint: no training is lost."""
        assert self.metrics is not None
        self.metrics.truncate_after(0)
        self.writer.note("note: the run ended before its first checkpoint; starting at step 0")

    # -- while training (the loop's Session) ----------------------------------------------------------------------

    @contextmanager
    def running(self, loop: Loop) -> Iterator[None]:
        """Opens the run, and closes it in any case."""
        if self.is_kept:
            self._require_directory()
        done = loop.progress
        self.show_header(start_step=done.env_steps, start_updates=done.updates, budget=done.budget)
        if loop.is_finished:
            self.writer.note(self.commands.when_spent(loop))
        self.state, self.signals.received, self.commands.is_refused = "running", None, False
        # Around everything: a signal that comes while the run is being closed must not leave it half closed.
        with self.signals.watching(partial(self._stop, loop), self._last_name, self.writer.note, loop.stops_after):
            try:
                with self.ranks.leading():
                    # Inside: whoever reads that the run is going on may send a signal at once.
                    self._write_status(loop)
                    if decide(loop.world, self.checkpoints is not None and self.last is None):
                        self._commit(loop)
                    with watching_environments(self, loop), telling_of_first_update(self.writer.note, loop):
                        yield
                        self.state = "stopped" if loop.stop_reason else "finished"
                        self._commit_last(loop)
                        if self.artifacts is not None and self.last is not None:
                            self.artifacts.finish(loop, self.last)
                        if self.state == "finished" and (idle := loop.idle_events()):
                            self.warn(loop, "W0214", f"these events never happened in this run: {', '.join(idle)}")
            except BaseException as error:
                self.state = "failed"
                self.commands.is_refused = isinstance(error, QuintainError) and error.is_refusal
                self._keep_evidence_of(loop, error)
                with suppress(QuintainError):  # the disk may be the very cause; the first error is what matters
                    self._write_status(loop, exit_code=getattr(error, "exit_code", 1), reason=str(error))
                self.log("failed", loop, code=getattr(error, "code", None), detail=str(error))
                raise
            finally:
                self.writer.close(self.summary(loop))
            self._write_status(loop, exit_code=self.exit_code, reason=loop.stop_reason or None)
        loop.stop_reason = ""
        self.is_header_shown = False
        self.signals.raise_received()

    def after_stage(self, loop: Loop) -> None:
        """Commits after a stage if the loop requests it."""
        if decide(loop.world, self.checkpoints is not None):
            self._try_commit(loop)

    def after_cycle(self, loop: Loop) -> None:
        """Writes the row and the checkpoint that are due, in this order."""
        if is_report_due(self.run_file, loop):
            self.report(loop)
        is_due = is_commit_due(self.run_file, loop, time.monotonic() - self.last_commit_time)
        is_due = is_due or (self.artifacts is not None and self.artifacts.is_due(loop))
        if decide(loop.world, self.checkpoints is not None and is_due):
            self._try_commit(loop)

    def report(self, loop: Loop) -> None:
        """Writes a row of the statistics since the last one."""
        stats, progress = loop.stats, loop.progress
        stats.set_all(reported := loop.report())
        self.num_faults = int(reported.get("env/restarts", 0))
        stats.set_stat("time/iterations", progress.updates)
        stats.set_stat("time/episodes", progress.episodes)
        row = stats.write_stats(progress.env_steps, progress.updates)
        if self.metrics is not None:
            self.metrics.append(progress.env_steps, row)
        if self.artifacts is not None:
            self.artifacts.reported(row)

    def save(self, loop: Loop) -> Path:
        """Commits a checkpoint now; a run without a directory gets one."""
        self._require_directory()
        path = self._commit(loop).path
        loop.world.broadcast(str(path).encode())
        return path

    def resume_from(self, loop: Loop, path: Path) -> None:
        """Continues the run of a checkpoint from there."""
        checkpoint = verify(path)
        directory = RunDirectory.open_existing(checkpoint.path.parents[1])
        if self.directory is not None and self.checkpoints is not None:
            if self.directory.path.resolve() != directory.path.resolve():
                raise RunDirectoryError(
                    f"this trainer writes to {self.directory.path} and cannot go on in {directory.path}; make a new one"
                )
        else:
            self.resources.enter_context(directory.lock())
            require_same_settings(directory, self.run_file)
            self.open_directory(directory)
        budget = loop.progress.budget
        self.restore(loop, checkpoint)
        loop.progress.budget = budget

    def folder(self, name: str) -> Path:
        """Returns a folder of the run's directory; a run without a directory gets one."""
        return self._require_directory().folder(name)

    def keep_evidence(self, loop: Loop, tensors: Mapping[str, Any]) -> Path | None:
        """Writes arrays to crash/ if the run has a directory, and returns the path."""
        if self.directory is None or self.checkpoints is None:
            return None
        path = self.directory.write_evidence(tensors)
        self.log("evidence", loop, detail=path.name)
        return path

    def rollback(self, loop: Loop) -> bool:
        """Restores the last checkpoint on all ranks; returns whether there was one."""
        if not decide(loop.world, self.last is not None and self.metrics is not None):
            return False
        assert self.last is not None
        assert self.metrics is not None
        state = load(self.last.path).state
        if loop.world.size > 1:
            broadcast_state(loop.world, state)
        restore_rank(loop, state)
        self.metrics.truncate_after(loop.stats.last_step, loop.stats.last_updates)
        return True

    def warn(self, loop: Loop, code: str, text: str) -> None:
        """Sends a warning to the user and the event log."""
        self.writer.note(f"warning[{code}]: {text}")
        self.log("warning", loop, code=code, detail=text)

    def tell(self, text: str) -> None:
        """Prints a line."""
        self.writer.note(text)

    def summary(self, loop: Loop) -> RunSummary:
        last = None if self.last is None else self.last.name
        return summary_of(loop, self.state, last, max(loop.faults.restarts, self.num_faults), self.commands)

    @property
    def exit_code(self) -> int:
        return self.signals.exit_code or 0

    def close(self) -> None:
        self.resources.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _last_name(self) -> str:
        return self.last.name if self.last else "none"

    def _stop(self, loop: Loop, reason: str) -> None:
        loop.stop(reason)
        self.ranks.stop()

    def _require_directory(self) -> RunDirectory:
        if self.take_over is not None:
            directory = self.take_over()
            self.take_over = None
            return directory
        if self.directory is None or self.checkpoints is None:
            about = env_name(self.run_file), self.run_file.trained
            run_id = self.run_file.run.id or default_run_id(*about, runs_dir=self.runs_dir)
            directory = RunDirectory.create(self.runs_dir, run_id, shown=self.shown_runs_dir / run_id)
            self.resources.enter_context(directory.lock())
            self.open_directory(directory)
            self.write_settings()
            return directory
        return self.directory

    def _keep_evidence_of(self, loop: Loop, error: BaseException) -> None:
        if isinstance(error, NonFiniteError) and error.evidence:
            with suppress(QuintainError):
                path = self.keep_evidence(loop, error.evidence)
                error.notes = (*error.notes, *([f"note: the last steps are in {path}"] if path else []))

    def _try_commit(self, loop: Loop) -> None:
        """Commits; on a full disk it tries again at the next interval, a few times, before the run fails."""
        try:
            self._commit(loop)
            self.failed_commits = 0
        except ResourceError as error:
            self.failed_commits += 1
            self.log("checkpoint_failed", loop, code=error.code, detail=error.message)
            if self.failed_commits >= MAX_FAILED_COMMITS:
                raise
            self.writer.note(f"warning[{error.code.replace('E', 'W')}]: {error.message}; training continues")
            self.last_commit_time = time.monotonic()

    def _commit_last(self, loop: Loop) -> None:
        is_saved = self.saved_updates == loop.progress.updates and not loop.stop_reason
        if decide(loop.world, self.checkpoints is not None and not is_saved):
            self._commit(loop)

    def _commit(self, loop: Loop) -> Checkpoint:
        assert self.checkpoints is not None
        assert self.artifacts is not None
        if self.metrics is not None:
            self.metrics.sync()
        step = loop.progress.env_steps
        is_best = loop.records.is_new_best(step)
        self.checkpoints.needed = self.artifacts.needed
        is_best = self.artifacts.is_best(loop) or is_best
        state = gather_state(loop)
        about = checkpoint_facts(self.run_file, loop, joint_exactness(loop))
        try:
            self.last = self.checkpoints.commit(state, step=step, about=about, is_best=is_best)
        finally:
            loop.world.broadcast(b"")  # the others wait for the disk
        self.last_commit_time, self.saved_updates = time.monotonic(), loop.progress.updates
        self._write_status(loop)
        self.artifacts.committed(loop, self.last)
        return self.last

    def _write_status(self, loop: Loop, exit_code: int | None = None, reason: str | None = None) -> None:
        if self.directory is None or self.checkpoints is None:
            return
        self.directory.write_status(
            Status(
                state=self.state,  # type: ignore[arg-type]  # one of the four by construction
                step=loop.progress.env_steps,
                checkpoint=None if self.last is None else self.last.name,
                pid=os.getpid(),
                exit_code=exit_code,
                reason=reason,
            )
        )

    def log(self, kind: str, loop: Loop, *, code: str | None = None, detail: Any = None) -> None:
        if self.event_log is not None:
            self.event_log.append(kind, step=loop.progress.env_steps, code=code, detail=detail)
