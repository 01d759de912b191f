"""One run: a trainer with its directory, output, checkpoints and signals; with no directory, only output."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.behavior_files import BehaviorFiles
from quintain.errors import NonFiniteError, QuintainError, ResourceError
from quintain.follow import decide, is_report_due
from quintain.rank_state import broadcast_state, gather_state, joint_exactness, share_policy
from quintain.ranks import Ranks
from quintain.restore import num_ranks_in, require_same_spec, restore_rank, take_up
from quintain.run_faults import watching_environments
from quintain.run_output import CommandHints, checkpoint_facts, env_name, header_of
from quintain.services.checkpoint_catalog import Checkpoint, load
from quintain.services.checkpoints import CheckpointManager
from quintain.services.event_log import EventLog
from quintain.services.metrics_file import MetricsFile
from quintain.services.run_directory import RunDirectory, Status
from quintain.services.run_names import default_run_id
from quintain.services.signals import StopSignals
from quintain.services.writers import RunSummary, Writer, WriterGroup
from quintain.settings.agent_rules import has_agents
from quintain.versions import facts

if TYPE_CHECKING:
    from quintain.settings.tree import RunFile
    from quintain.trainers.base import Trainer

MAX_FAILED_COMMITS = 3


class Run:
    """Surrounds training: it implements the trainer's `Session`."""

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
    ) -> None:
        """Surrounds training with a directory from the start if one is given or `is_kept`; else when one is needed.

        A run that `has_objects` for which the settings have no name cannot be taken up from the command line.
        """
        self.run_file = run_file
        self.runs_dir = (runs_dir if directory is None else directory.path.parent).absolute()
        self.shown_runs_dir = runs_dir
        self.is_kept = is_kept
        self.writer = WriterGroup(writers)
        self.signals = StopSignals(run_file.run.grace_seconds)
        self.directory = directory
        self.has_objects = has_objects
        self.commands = CommandHints(directory, run_file, has_objects=has_objects)
        self.checkpoints: CheckpointManager | None = None
        self.metrics: MetricsFile | None = None
        self.event_log: EventLog | None = None
        self.files: BehaviorFiles | None = None
        self.last: Checkpoint | None = None
        self.last_commit_time = time.monotonic()
        self.failed_commits = 0
        self.state = "running"
        self.resources = resources or ExitStack()
        self.ranks = ranks or Ranks(run_file, starts_processes=False)
        self.resources.callback(self.ranks.close)
        self.is_header_shown = False

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether there is a directory for checkpoints from the start."""
        return self.directory is not None or self.is_kept

    # -- before training ------------------------------------------------------------------------------------------

    def show_header(self, *, start_step: int = 0, budget_env_steps: int | None = None) -> None:
        """Prints what is about to happen, once; needs no torch, so it can come before the slow imports."""
        if not self.is_header_shown:
            self.is_header_shown = True
            budget = budget_env_steps or self.run_file.experiment.budget.env_steps
            self.writer.open(header_of(self.run_file, self.directory, start_step, budget))

    def open_directory(self, directory: RunDirectory) -> None:
        """Clears up after a killed process and opens the files; the caller holds the run's lock in `resources`."""
        self.directory = directory
        self.commands = CommandHints(directory, self.run_file, has_objects=self.has_objects)
        self.checkpoints = CheckpointManager(directory.checkpoints, keep=self.run_file.run.checkpoint.keep)
        for warning in self.checkpoints.sweep():
            self.writer.note(warning)
        self.metrics = MetricsFile(directory.metrics, warn=self.writer.note)
        self.resources.callback(self.metrics.close)
        self.event_log = EventLog(directory.events)
        self.resources.callback(self.event_log.close)
        if has_agents(self.run_file.experiment):
            self.files = BehaviorFiles(self.run_file, directory)

    def write_settings(self) -> None:
        assert self.directory is not None
        self.directory.write_config(self.run_file.to_yaml())
        self.directory.write_environment(facts(self.run_file.run.threads))

    def restore(self, trainer: Trainer, checkpoint: Checkpoint) -> None:
        """Puts a fresh trainer where the checkpoint stands and drops the metric rows after it."""
        assert self.directory is not None
        assert self.metrics is not None
        assert self.checkpoints is not None
        loaded = load(checkpoint.path)
        require_same_spec(trainer.policy, loaded)
        if trainer.world.size > 1:
            broadcast_state(trainer.world, loaded.state)
        restore_rank(trainer, loaded.state)
        trainer.set_budget(self.run_file.experiment.budget.env_steps)
        self.last = checkpoint
        # Going back is a new branch: until it is committed, the next resume would take up the old one.
        if decide(trainer.world, checkpoint.commit != self.checkpoints.latest(lambda text: None).commit):
            self._commit(trainer)
        # Not after the checkpoint's step: one taken before its cycle's row was written must write that row again.
        self.metrics.truncate_after(trainer.stats.last_step)
        if note := self.directory.describe_unclosed(checkpoint.step):
            self.writer.note(note)
        self.log("resumed", trainer, detail={"checkpoint": checkpoint.name})
        exactness = self.begin_together(trainer)
        num_ranks = num_ranks_in(loaded.state)
        if num_ranks != trainer.world.size:
            exactness = f"statistical: {num_ranks} ranks became {trainer.world.size}, so all lanes begin new episodes"
        self.show_determinism(exactness)

    def begin_together(self, trainer: Trainer) -> str:
        """Gives all ranks the same weights and returns how exactly the run can be resumed."""
        share_policy(trainer.policy, trainer.world)
        return joint_exactness(trainer)

    def show_determinism(self, exactness: str) -> None:
        """Says what a resume of this run promises, as soon as the environment is known."""
        if exactness == "exact":
            self.writer.note("determinism L3: stopped or killed anywhere, a resume ends with the same numbers")
        else:
            self.writer.note(f"warning[W0402]: determinism L1: a resume is not exact; {exactness}")

    def begin_again(self) -> None:
        """Takes up a run that ended before its first checkpoint: nothing was learned, so nothing is lost."""
        assert self.metrics is not None
        self.metrics.truncate_after(0)
        self.writer.note("note: the run ended before its first checkpoint; starting at step 0")

    # -- while training (the trainer's Session) -------------------------------------------------------------------

    @contextmanager
    def running(self, trainer: Trainer) -> Iterator[None]:
        """Opens the run, and closes it whatever happens."""
        if self.is_kept:
            self._require_directory()
        self.show_header(start_step=trainer.progress.env_steps, budget_env_steps=trainer.progress.budget_env_steps)
        self.state = "running"
        try:
            with self.ranks.leading(), self.signals.watching(self._stopper(trainer), self._last_name):
                # Inside: whoever reads that the run is going on may send a signal at once.
                self._write_status(trainer)
                if decide(trainer.world, self.checkpoints is not None and self.last is None):
                    self._commit(trainer)
                with watching_environments(self, trainer):
                    yield
                    self.state = "stopped" if trainer.stop_reason else "finished"
                    self._commit_last(trainer)
                    if self.files is not None and self.last is not None:
                        self.files.finish(trainer, self.last)
                    self._report_idle_events(trainer)
        except BaseException as error:
            self.state = "failed"
            self._keep_evidence_of(trainer, error)
            with suppress(QuintainError):  # the disk may be the very cause; what the user must see is the first error
                self._write_status(trainer, exit_code=getattr(error, "exit_code", 1), reason=str(error))
            self.log("failed", trainer, code=getattr(error, "code", None), detail=str(error))
            raise
        finally:
            self.writer.close(self.summary(trainer))
        self._write_status(trainer, exit_code=self.exit_code, reason=trainer.stop_reason or None)
        trainer.stop_reason = ""
        self.is_header_shown = False

    def after_cycle(self, trainer: Trainer) -> None:
        """Writes the row and the checkpoint that are due, in this order."""
        if is_report_due(self.run_file, trainer):
            self._report(trainer)
        if decide(trainer.world, self.checkpoints is not None and self._is_commit_due(trainer)):
            self._try_commit(trainer)

    def save(self, trainer: Trainer) -> Path:
        """Commits a checkpoint now; a run without a directory gets one."""
        self._require_directory()
        path = self._commit(trainer).path
        trainer.world.broadcast(str(path).encode())
        return path

    def take_up(self, trainer: Trainer, path: Path) -> None:
        """Goes on with the run that a checkpoint is of, from there."""
        take_up(self, trainer, path)

    def folder(self, name: str) -> Path:
        """Returns a folder of the run's directory; a run without a directory gets one."""
        return self._require_directory().folder(name)

    def keep_evidence(self, trainer: Trainer, tensors: Mapping[str, Any]) -> Path | None:
        """Writes arrays to crash/ if the run has a directory, and says where."""
        if self.directory is None or self.checkpoints is None:
            return None
        path = self.directory.write_evidence(tensors)
        self.log("evidence", trainer, detail=path.name)
        return path

    def rollback(self, trainer: Trainer) -> bool:
        """Puts all ranks back to the last checkpoint; says whether there was one."""
        if not decide(trainer.world, self.last is not None and self.metrics is not None):
            return False
        assert self.last is not None
        assert self.metrics is not None
        state = load(self.last.path).state
        if trainer.world.size > 1:
            broadcast_state(trainer.world, state)
        restore_rank(trainer, state)
        self.metrics.truncate_after(trainer.stats.last_step)
        return True

    def warn(self, trainer: Trainer, code: str, text: str) -> None:
        """Tells the user and the event log of something that training survives."""
        self.writer.note(f"warning[{code}]: {text}")
        self.log("warning", trainer, code=code, detail=text)

    def summary(self, trainer: Trainer) -> RunSummary:
        records = trainer.records
        budget = None if records.goal_reached else trainer.progress.budget_env_steps
        return RunSummary(
            state=self.state,  # type: ignore[arg-type]  # one of the three once training ended
            seconds=trainer.stats.total_seconds,
            env_steps=trainer.progress.env_steps,
            best_eval=records.best_return,
            best_step=records.best_step if records.best_return is not None else None,
            num_eval_episodes=records.num_eval_episodes,
            last_checkpoint=None if self.last is None else self.last.name,
            next_commands=self.commands.after(self.state, budget),
        )

    @property
    def exit_code(self) -> int:
        return self.signals.exit_code or 0

    def close(self) -> None:
        self.resources.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _last_name(self) -> str:
        return self.last.name if self.last else "none"

    def _stopper(self, trainer: Trainer) -> Callable[[str], None]:
        def stop(reason: str) -> None:
            trainer.stop(reason)
            self.ranks.stop()

        return stop

    def _require_directory(self) -> RunDirectory:
        if self.directory is None or self.checkpoints is None:
            behavior = next(iter(self.run_file.experiment.behaviors.values()))
            run_id = self.run_file.run.id or default_run_id(
                env_name(self.run_file), behavior.algorithm.type, runs_dir=self.runs_dir
            )
            directory = RunDirectory.create(self.runs_dir, run_id, shown=self.shown_runs_dir / run_id)
            self.resources.enter_context(directory.lock())
            self.open_directory(directory)
            self.write_settings()
            return directory
        return self.directory

    def _report_idle_events(self, trainer: Trainer) -> None:
        """Says which events the whole run never called: a typing error in a trigger shows nowhere else."""
        idle = trainer.idle_events() if self.state == "finished" else []
        if idle:
            self.warn(trainer, "W0214", f"these events never happened in this run: {', '.join(idle)}")

    def _keep_evidence_of(self, trainer: Trainer, error: BaseException) -> None:
        if isinstance(error, NonFiniteError) and error.evidence:
            with suppress(QuintainError):
                path = self.keep_evidence(trainer, error.evidence)
                error.notes = (*error.notes, *([f"note: the last steps are in {path}"] if path else []))

    def _report(self, trainer: Trainer) -> None:
        stats, progress = trainer.stats, trainer.progress
        for name, seconds in trainer.source.drain_seconds().items():
            stats.add_time(name, seconds)
        stats.set_all(trainer.episode_stats())
        stats.set_all(trainer.fault_stats())
        stats.set_stat("time/iterations", progress.updates)
        row = stats.write_stats(progress.env_steps)
        if self.metrics is not None:
            self.metrics.append(progress.env_steps, row)
        if self.files is not None:
            self.files.reported(row)

    def _is_commit_due(self, trainer: Trainer) -> bool:
        every, progress = self.run_file.run.checkpoint, trainer.progress
        return (
            (every.every_env_steps is not None and progress.crossed(every.every_env_steps))
            or (every.every_updates is not None and progress.updates % every.every_updates == 0)
            or (every.every_seconds is not None and time.monotonic() - self.last_commit_time >= every.every_seconds)
            or trainer.records.is_new_best(progress.env_steps)
            or (self.files is not None and self.files.is_due(trainer))
        )

    def _try_commit(self, trainer: Trainer) -> None:
        """Commits; a full disk is tried again at the next interval, a few times, before the run gives up."""
        try:
            self._commit(trainer)
            self.failed_commits = 0
        except ResourceError as error:
            self.failed_commits += 1
            self.log("checkpoint_failed", trainer, code=error.code, detail=error.message)
            if self.failed_commits >= MAX_FAILED_COMMITS:
                raise
            self.writer.note(f"warning[{error.code.replace('E', 'W')}]: {error.message}; training continues")
            self.last_commit_time = time.monotonic()

    def _commit_last(self, trainer: Trainer) -> None:
        is_saved = self.last is not None and self.last.step == trainer.progress.env_steps and not trainer.stop_reason
        if decide(trainer.world, self.checkpoints is not None and not is_saved):
            self._commit(trainer)

    def _commit(self, trainer: Trainer) -> Checkpoint:
        assert self.checkpoints is not None
        if self.metrics is not None:
            self.metrics.sync()
        step = trainer.progress.env_steps
        is_best = trainer.records.is_new_best(step)
        if self.files is not None:
            self.checkpoints.needed = self.files.needed
            is_best = self.files.is_best(trainer) or is_best
        state = gather_state(trainer)
        about = checkpoint_facts(self.run_file, trainer, joint_exactness(trainer))
        try:
            self.last = self.checkpoints.commit(state, step=step, about=about, is_best=is_best)
        finally:
            trainer.world.broadcast(b"")  # the others wait for the disk
        self.last_commit_time = time.monotonic()
        self._write_status(trainer)
        if self.files is not None:
            self.files.committed(trainer, self.last)
        return self.last

    def _write_status(self, trainer: Trainer, exit_code: int | None = None, reason: str | None = None) -> None:
        if self.directory is None or self.checkpoints is None:
            return
        self.directory.write_status(
            Status(
                state=self.state,  # type: ignore[arg-type]  # one of the four by construction
                step=trainer.progress.env_steps,
                checkpoint=None if self.last is None else self.last.name,
                pid=os.getpid(),
                exit_code=exit_code,
                reason=reason,
            )
        )

    def log(self, kind: str, trainer: Trainer, *, code: str | None = None, detail: Any = None) -> None:
        if self.event_log is not None:
            self.event_log.append(kind, step=trainer.progress.env_steps, code=code, detail=detail)
